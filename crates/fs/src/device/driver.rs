//! The seam between a device's node and the code behind it.

use crate::stream::Stream;
use crate::{FsError, OpenFlags};
use quire_heap::Arc;

/// What stands behind a device number.
pub trait Driver: Send + Sync {
    /// Opens the device.
    fn open(&self, flags: OpenFlags) -> Result<Arc<dyn Stream>, FsError>;
}
