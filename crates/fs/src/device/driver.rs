//! The interface between a device's node and its driver.

use crate::stream::Stream;
use crate::{FsError, OpenFlags};
use quire_heap::Arc;

/// The driver of a device number.
pub trait Driver: Send + Sync {
    /// Opens the device.
    fn open(&self, flags: OpenFlags) -> Result<Arc<dyn Stream>, FsError>;
}
