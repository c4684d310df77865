//! The login that a thread belongs to. A program that logs a user in sets it, and all descendants inherit it.

use super::capabilities::cap;
use crate::errno::Errno;
use crate::machine::Machine;
use crate::process::thread::Thread;
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
    pub const fn new() -> Self {
        Logins(AtomicU32::new(0))
    }

    /// The number of a new login, which is never [`Login::UNSET`].
    fn next(&self) -> u32 {
        let next = || self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        match next() {
            Login::UNSET => next(),
            number => number,
        }
    }
}

impl<M: Machine> Thread<M> {
    /// Makes the thread belong to a new login of `user`, or to none if `user` is [`Login::UNSET`]. Called by the thread
    /// itself. EPERM if the thread belongs to a login already and may not leave it. ENOMEM if there is no memory.
    pub fn log_in(&self, user: u32) -> Result<(), Errno> {
        let mut new = self.credentials.look(Clone::clone);
        if new.login() != Login::NONE && !new.may(cap::AUDIT_CONTROL) {
            return Err(Errno::EPERM);
        }
        let login = match user {
            Login::UNSET => Login::NONE,
            user => Login { user, session: self.linux.logins.next() },
        };
        new.set_login(login)?;
        self.become_user(new);
        Ok(())
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
