//! The login that a thread belongs to. A program that logs a user in sets it, and all descendants inherit it.

use quire_sync::atomic::{AtomicU32, Ordering};

/// The user that logged in, and the number of the login.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Login {
    pub user: u32,
    pub session: u32,
}

impl Login {
    /// The user and the number of no login.
    pub const UNSET: u32 = u32::MAX;
    /// No login.
    pub const NONE: Login = Login { user: Self::UNSET, session: Self::UNSET };
}

/// The number of the last login.
pub struct Logins(AtomicU32);

impl Default for Logins {
    fn default() -> Self {
        Self::new()
    }
}

impl Logins {
    /// No login yet.
    pub fn new() -> Self {
        Logins(AtomicU32::new(0))
    }

    /// The number of a new login, which is never [`Login::UNSET`].
    pub(crate) fn next(&self) -> u32 {
        let next = || self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        match next() {
            Login::UNSET => next(),
            number => number,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn no_login_has_the_number_of_none() {
        let logins = Logins(AtomicU32::new(u32::MAX - 2));
        assert_eq!([logins.next(), logins.next(), logins.next()], [u32::MAX - 1, 0, 1]);
    }
}
