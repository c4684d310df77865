//! The interface between a device's node and its driver.

use crate::stream::Stream;
use crate::{FsError, OpenFlags};
use quire_heap::Arc;

/// The driver of a device number.
pub trait Driver: Send + Sync {
    /// Opens the device.
    fn open(&self, flags: OpenFlags) -> Result<Arc<dyn Stream>, FsError>;
    /// Opens device `minor` of a driver that is registered for [all minors](crate::DeviceNumber::each).
    fn open_minor(&self, _minor: u32, flags: OpenFlags) -> Result<Arc<dyn Stream>, FsError> {
        self.open(flags)
    }
}
