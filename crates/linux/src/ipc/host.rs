//! The types of System V IPC in this kernel. [`beneath`](super::beneath) implements their host.

use crate::Machine;
use crate::file::host::FileHost;
pub use crate::ipc::memory::IpcHost;
use crate::ipc::memory::SegmentMemory;
use crate::process::users::Charge;
use quire_fs::readiness::Readiness;
use quire_ipc::Error;

/// Kernel memory or locked memory, charged to the user that made a call.
pub struct IpcCharge {
    _charge: Charge,
}

impl IpcCharge {
    pub(super) fn new(charge: Charge) -> Self {
        IpcCharge { _charge: charge }
    }
}

/// A segment of this kernel.
pub type Segment<M> = quire_ipc::shm::Segment<IpcHost<M>, SegmentMemory<M>>;
/// A thread's share in the undos of its process.
pub type Undos<M> = quire_ipc::sem::Undos<IpcHost<M>>;

/// Announces changes of a POSIX queue.
#[derive(Default)]
pub struct QueueWatch(pub(super) Readiness);

/// A POSIX message queue of this kernel.
pub type PosixQueue<M> = quire_ipc::posix::PosixQueue<IpcHost<M>, QueueWatch>;

/// All objects of System V IPC, and POSIX message queues.
pub struct Ipc<M: Machine> {
    pub(crate) segments: quire_ipc::shm::Segments<IpcHost<M>, SegmentMemory<M>>,
    pub(crate) arrays: quire_ipc::sem::Arrays<IpcHost<M>>,
    pub(crate) queues: quire_ipc::msg::Queues<IpcHost<M>>,
    pub(crate) posix: quire_ipc::posix::PosixQueues<IpcHost<M>, QueueWatch>,
}

impl<M: Machine> Ipc<M> {
    /// None.
    pub(crate) fn new(host: FileHost<M>) -> Result<Self, Error> {
        let host = IpcHost(host);
        Ok(Ipc {
            segments: quire_ipc::shm::Segments::new(host)?,
            arrays: quire_ipc::sem::Arrays::new(host)?,
            queues: quire_ipc::msg::Queues::new(host)?,
            posix: quire_ipc::posix::PosixQueues::new(host),
        })
    }
}
