//! The system beneath.

use quire_sync::epoch::Domain;

/// The clock, the epoch and the users' accounts.
pub trait Host: Clone + Send + Sync + 'static {
    /// An amount charged to a user, until it is dropped.
    type Charge: Send + Sync + 'static;

    /// The domain in which ids are looked up.
    fn epoch(&self) -> &'static Domain;
    /// Seconds since 1970.
    fn seconds(&self) -> i64;
    /// The id of the calling thread's process; 0 for the kernel itself.
    fn pid(&self) -> u32;
    /// Charges kernel memory to the calling thread's user. `None`: the user has too much already.
    fn charge(&self, bytes: u64) -> Option<Self::Charge>;
    /// Charges a POSIX queue with all its messages. `None`: the user has too much already.
    fn charge_queue(&self, bytes: u64) -> Option<Self::Charge>;
    /// Charges memory that is kept resident. `None`: the user may lock no more.
    fn charge_locked(&self, bytes: u64) -> Option<Self::Charge>;
}
