//! Trees whose files are generated when they are read: `/proc` and `/sys`.

use crate::file::host::FileHost;
use crate::{Ctx, Errno, Linux, Machine};
use quire_fs::generated::{GeneratedDirectory, GeneratedFile};
use quire_heap::Arc;

/// The root directory of a generated tree.
pub type Root<M> = Arc<dyn GeneratedDirectory<FileHost<M>>>;

/// The generated trees of a kernel.
pub trait Trees<M: Machine>: Sync {
    /// The root of `/proc`. ENODEV if the kernel has none.
    fn proc(&self, linux: &'static Linux<M>) -> Result<Root<M>, Errno>;

    /// The root of `/sys`. ENODEV if the kernel has none.
    fn sys(&self, linux: &'static Linux<M>) -> Result<Root<M>, Errno>;

    /// Executes an `ioctl` on a generated file; `None` if the file does not know the request.
    fn ioctl(
        &self,
        ctx: &Ctx<'_, M>,
        file: &dyn GeneratedFile,
        request: u32,
        argument: u64,
    ) -> Option<Result<usize, Errno>>;
}

/// No generated trees, for tests of other parts.
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
