//! The memory of users, for the choice of the victim.
//!
//! A user can hold most memory with many small processes. Then the largest process of the machine is an innocent one.
//! [`Sums`] finds such a user. Memory is exhausted at that time, so the sums are made in a table of fixed size. A
//! majority vote (the algorithm of Misra and Gries) chooses the users in the table. If a user holds more than half of
//! all pages, that user is in the table at the end.

/// Users that are counted at once.
const MOST: usize = 8;

/// Sums of pages by user.
pub(super) struct Sums {
    /// User ids, and their pages.
    users: [(u32, u64); MOST],
    used: usize,
    /// The pages of all processes, of user 0 too.
    all: u64,
    /// The pages that [`replace`](Self::replace) has subtracted from each user of a full table.
    lost: u64,
}

impl Sums {
    pub fn new() -> Self {
        Sums { users: [(0, 0); MOST], used: 0, all: 0, lost: 0 }
    }

    /// Adds a process of `user` that holds `pages`. A process with `points` below 0 is protected by its
    /// `oom_score_adj`, and does not make its user a victim.
    pub fn add(&mut self, user: u32, pages: u64, points: i64) {
        self.all = self.all.saturating_add(pages);
        if user == 0 || points < 0 {
            return;
        }
        if let Some(known) = self.users[..self.used].iter_mut().find(|known| known.0 == user) {
            known.1 = known.1.saturating_add(pages);
        } else if self.used < MOST {
            self.users[self.used] = (user, pages);
            self.used += 1;
        } else {
            self.replace(user, pages);
        }
    }

    /// Makes room in a full table: takes the same number of pages off all users, until one of them has none.
    fn replace(&mut self, user: u32, pages: u64) {
        let least = self.users.iter().map(|known| known.1).min().unwrap_or(0).min(pages);
        self.lost = self.lost.saturating_add(least);
        self.users.iter_mut().for_each(|known| known.1 -= least);
        if let Some(place) = self.users.iter_mut().find(|known| known.1 == 0) {
            *place = (user, pages - least);
        }
    }

    /// The user other than 0 whose processes hold more than half of the pages of all processes.
    pub fn majority(&self) -> Option<u32> {
        let (user, pages) = self.users[..self.used].iter().max_by_key(|known| known.1)?;
        (pages.saturating_add(self.lost) > self.all / 2).then_some(*user)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn sums(processes: impl IntoIterator<Item = (u32, u64)>) -> Option<u32> {
        let mut sums = Sums::new();
        processes.into_iter().for_each(|(user, pages)| sums.add(user, pages, 0));
        sums.majority()
    }

    #[test]
    fn many_small_processes_of_one_user_are_a_majority() {
        assert_eq!(sums([]), None);
        assert_eq!(sums([(0, 1000)]), None, "user 0 is exempt");
        let bomb = || (0..10_000).map(|_| (1000, 8));
        assert_eq!(sums(bomb().chain([(0, 50_000)])), Some(1000));
        assert_eq!(sums(bomb().chain([(0, 90_000)])), None);
        assert_eq!(sums([(1000, 50), (1001, 50)]), None, "exactly half is no majority");
    }

    #[test]
    fn a_majority_is_found_among_any_number_of_users() {
        for first in [true, false] {
            let others = (2000..3000).map(|user| (user, 9));
            let bomb = (0..2000).map(|_| (1000, 8));
            let found = match first {
                true => sums(bomb.chain(others)),
                false => sums(others.chain(bomb)),
            };
            assert_eq!(found, Some(1000));
        }
        assert_eq!(sums((2000..3000).map(|user| (user, 9))), None);
    }

    #[test]
    fn protected_processes_do_not_condemn_their_user() {
        let mut sums = Sums::new();
        sums.add(1000, 1000, -5);
        sums.add(1000, 10, 10);
        assert_eq!(sums.majority(), None);
    }
}
