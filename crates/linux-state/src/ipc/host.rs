//! The types of `quire_ipc` with this kernel's host, which [`glue`](super::glue) implements.

use crate::Machine;
use crate::file::host::FileHost;
pub use crate::ipc::memory::IpcHost;
use crate::ipc::memory::SegmentMemory;
use crate::process::users::Charge;
use quire_fs::readiness::Readiness;
use quire_ipc::Error;
use quire_ipc::posix::Watch;
use quire_sync::WaitQueue;

/// A charge for kernel memory or locked memory to the user that made a call.
pub struct IpcCharge {
    _charge: Charge,
}

impl IpcCharge {
    pub fn new(charge: Charge) -> Self {
        IpcCharge { _charge: charge }
    }
}

/// A shared memory segment with this kernel's host.
pub type Segment<M> = quire_ipc::shm::Segment<IpcHost<M>, SegmentMemory<M>>;
/// A thread's part of the semaphore undos of its process.
pub type Undos<M> = quire_ipc::sem::Undos<IpcHost<M>>;

/// Notifies waiters of changes of a POSIX message queue.
#[derive(Default)]
pub struct QueueWatch(pub Readiness);

impl Watch for QueueWatch {
    fn sleepers(&self) -> &WaitQueue {
        self.0.sleepers()
    }
    fn notify(&self) {
        self.0.notify();
    }
}

/// A POSIX message queue with this kernel's host.
pub type PosixQueue<M> = quire_ipc::posix::PosixQueue<IpcHost<M>, QueueWatch>;

/// All objects of System V IPC, and all POSIX message queues.
pub struct Ipc<M: Machine> {
    pub segments: quire_ipc::shm::Segments<IpcHost<M>, SegmentMemory<M>>,
    pub arrays: quire_ipc::sem::Arrays<IpcHost<M>>,
    pub queues: quire_ipc::msg::Queues<IpcHost<M>>,
    pub posix: quire_ipc::posix::PosixQueues<IpcHost<M>, QueueWatch>,
}

impl<M: Machine> Ipc<M> {
    /// A set without objects.
    pub fn new(host: FileHost<M>) -> Result<Self, Error> {
        let host = IpcHost(host);
        Ok(Ipc {
            segments: quire_ipc::shm::Segments::new(host)?,
            arrays: quire_ipc::sem::Arrays::new(host)?,
            queues: quire_ipc::msg::Queues::new(host)?,
            posix: quire_ipc::posix::PosixQueues::new(host),
        })
    }
}
