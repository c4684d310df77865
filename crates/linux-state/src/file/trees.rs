//! Trees whose files are generated when they are read: `/proc` and `/sys`.

use crate::file::host::FileHost;
use crate::{Ctx, Errno, Linux, Machine};
use quire_fs::generated::{GeneratedDirectory, GeneratedFile};
use quire_heap::Arc;

/// The root directory of such a tree.
pub type Root<M> = Arc<dyn GeneratedDirectory<FileHost<M>>>;

/// The trees of a kernel.
pub trait Trees<M: Machine>: Sync {
    /// `/proc`. ENODEV if the kernel has none.
    fn proc(&self, linux: &'static Linux<M>) -> Result<Root<M>, Errno>;

    /// `/sys`. ENODEV if the kernel has none.
    fn sys(&self, linux: &'static Linux<M>) -> Result<Root<M>, Errno>;

    /// Serves an `ioctl` of a generated file; `None` if the file has no such request.
    fn ioctl(
        &self,
        ctx: &Ctx<'_, M>,
        file: &dyn GeneratedFile,
        request: u32,
        argument: u64,
    ) -> Option<Result<usize, Errno>>;
}

/// No trees, for tests of other parts.
pub struct NoTrees;

impl<M: Machine> Trees<M> for NoTrees {
    fn proc(&self, _: &'static Linux<M>) -> Result<Root<M>, Errno> {
        Err(Errno::ENODEV)
    }

    fn sys(&self, _: &'static Linux<M>) -> Result<Root<M>, Errno> {
        Err(Errno::ENODEV)
    }

    fn ioctl(&self, _: &Ctx<'_, M>, _: &dyn GeneratedFile, _: u32, _: u64) -> Option<Result<usize, Errno>> {
        None
    }
}
