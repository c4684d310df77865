//! The system that this crate needs.

use quire_sync::epoch::Domain;

/// The clock, the epoch and the accounts of users.
pub trait Host: Clone + Send + Sync + 'static {
    /// An amount charged to a user, until it is dropped.
    type Charge: Send + Sync + 'static;

    /// The epoch domain in which readers look up ids.
    fn epoch(&self) -> &'static Domain;
    /// Seconds since 1970.
    fn seconds(&self) -> i64;
    /// The id of the calling thread's process; 0 for the kernel itself.
    fn pid(&self) -> u32;
    /// Charges `bytes` of kernel memory to the calling thread's user. `None` if the user would exceed its limit.
    fn charge(&self, bytes: u64) -> Option<Self::Charge>;
    /// Charges the bytes of a POSIX queue with all its messages. `None` if the user would exceed its limit.
    fn charge_queue(&self, bytes: u64) -> Option<Self::Charge>;
    /// Charges `bytes` of memory that is kept resident. `None` if the user may lock no more memory.
    fn charge_locked(&self, bytes: u64) -> Option<Self::Charge>;
}
