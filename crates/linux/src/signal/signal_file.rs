//! Signal files: `signalfd` and `signalfd4`.
//!
//! A read takes pending signals of the reading thread and of its process, also if another process made the file. A
//! sender of a signal notifies the `Readiness` of the receiving process. A file uses the `Readiness` of the process
//! that made the file. A child inherits the file and the process's `Readiness`. A process that receives the file in a
//! message and has no `Readiness` yet adopts the file's `Readiness` at its first use.

use crate::file::path::only;
use crate::signal::calls::check_len;
use core::any::Any;
use linux_raw_sys::general as raw;
use quire_fs::{FileCredentials, FsError, Io, OpenFlags, Readiness, Ready, Sink, Source, Stream};
use quire_heap::{Arc, OutOfMemory, unsize};
use quire_linux_state::Linux;
use quire_linux_state::ctx::Ctx;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::thread::Thread;
use quire_linux_state::signal::{Detail, SigInfo, SigSet};
use quire_sync::atomic::{AtomicU64, Ordering};

/// SFD_CLOEXEC and SFD_NONBLOCK.
const CLOEXEC: u32 = raw::O_CLOEXEC;
const NONBLOCK: u32 = raw::O_NONBLOCK;

/// The size of `struct signalfd_siginfo` in bytes.
const RECORD: usize = 128;

/// A file from which a reader gets its own pending signals.
pub struct SignalFile<M: Machine> {
    linux: &'static Linux<M>,
    wanted: AtomicU64,
    readiness: Arc<Readiness>,
}

impl<M: Machine> SignalFile<M> {
    /// The signals that a read takes.
    pub fn wanted(&self) -> SigSet {
        SigSet(self.wanted.load(Ordering::Acquire))
    }

    /// Returns the calling thread. If its process has no `Readiness` yet, the process adopts the file's. Then senders
    /// of signals to the process notify the waiters at this file.
    fn reader(&self) -> Result<&'static Thread<M>, OutOfMemory> {
        let thread = self.linux.current();
        thread.process.signal_files.get_or_make(|| self.readiness.clone())?;
        Ok(thread)
    }

    fn has_signal(&self, thread: &Thread<M>) -> bool {
        !thread.pending.set().or(thread.process.pending.set()).and(self.wanted()).is_empty()
    }
}

impl<M: Machine> Stream for SignalFile<M> {
    fn read(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
        if sink.room() < RECORD {
            return Err(FsError::Invalid);
        }
        let thread = self.reader()?;
        let mut done = 0;
        while sink.room() >= RECORD {
            let info = match done {
                0 => self.readiness.wait(io, || thread.take_pending(self.wanted()))?,
                _ => match thread.take_pending(self.wanted()) {
                    Some(info) => info,
                    None => break,
                },
            };
            match sink.put(&record(&info)) {
                Ok(RECORD) => done += RECORD,
                // As on Linux, a signal that could not be copied is lost.
                _ if done > 0 => break,
                _ => return Err(FsError::Fault),
            }
        }
        Ok(done)
    }

    fn write(&self, _io: &Io<'_>, _source: &mut dyn Source) -> Result<usize, FsError> {
        Err(FsError::Invalid)
    }

    fn ready(&self) -> Ready {
        match self.reader() {
            Ok(thread) if !self.has_signal(thread) => Ready::empty(),
            // If memory is exhausted, no sender would notify the caller. So the file counts as readable, and a read
            // reports the error.
            _ => Ready::READ,
        }
    }

    fn is_ready_for_caller_alone(&self) -> bool {
        true
    }

    fn readiness(&self) -> Option<&Readiness> {
        Some(&self.readiness)
    }

    fn seek(&self) -> Result<u64, FsError> {
        Ok(0)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The `struct signalfd_siginfo` of a signal.
fn record(info: &SigInfo) -> [u8; RECORD] {
    let mut out = [0; RECORD];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &u32::from(info.signal.number()).to_le_bytes());
    put(4, &info.errno.to_le_bytes());
    put(8, &info.code.to_le_bytes());
    let mut sender = |pid: u32, uid: u32| {
        put(12, &pid.to_le_bytes());
        put(16, &uid.to_le_bytes());
    };
    match info.detail {
        Detail::None => {}
        Detail::Sender { pid, uid } => sender(pid, uid),
        Detail::Value { pid, uid, value } => {
            sender(pid, uid);
            put(44, &(value as u32).to_le_bytes());
            put(48, &value.to_le_bytes());
        }
        Detail::Child { pid, uid, status, user, system } => {
            sender(pid, uid);
            put(40, &status.to_le_bytes());
            put(56, &user.to_le_bytes());
            put(64, &system.to_le_bytes());
        }
        Detail::Address(address) => put(72, &address.to_le_bytes()),
        Detail::Band { band, fd } => {
            put(20, &fd.to_le_bytes());
            put(28, &(band as u32).to_le_bytes());
        }
        Detail::Timer { id, overrun, value, .. } => {
            put(24, &id.to_le_bytes());
            put(32, &overrun.to_le_bytes());
            put(44, &(value as u32).to_le_bytes());
            put(48, &value.to_le_bytes());
        }
    }
    out
}

/// `signalfd4`
pub fn sys_signalfd4<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    wanted: u64,
    len: usize,
    flags: u32,
) -> Result<usize, Errno> {
    check_len(len)?;
    let wanted = ctx.read::<SigSet>(wanted)?.without(SigSet::UNBLOCKABLE);
    only(flags, CLOEXEC | NONBLOCK)?;
    if fd != -1 {
        let file = ctx.file(fd)?;
        let there = file.stream_as::<SignalFile<M>>().ok_or(Errno::EINVAL)?;
        there.wanted.store(wanted.0, Ordering::Release);
        there.readiness.notify();
        return Ok(fd as usize);
    }
    // A new `Readiness` is allocated in any case. It is dropped if the process has one already.
    let first = Arc::try_new(Readiness::new())?;
    let readiness = ctx.process().signal_files.get_or_make(|| first)?.clone();
    let file = Arc::try_new(SignalFile { linux: ctx.linux, wanted: AtomicU64::new(wanted.0), readiness })?;
    let mut ours = OpenFlags::READ | OpenFlags::WRITE;
    ours.set(OpenFlags::NONBLOCK, flags & NONBLOCK != 0);
    let file = ctx.vfs().nameless_stream(&FileCredentials::ROOT, "[signalfd]", unsize!(file), ours, false)?;
    ctx.install(file, flags & CLOEXEC != 0)
}

/// `signalfd`
pub fn sys_signalfd<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, wanted: u64, len: usize) -> Result<usize, Errno> {
    sys_signalfd4(ctx, fd, wanted, len, 0)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_linux_state::signal::Signal;
    use quire_linux_state::signal::info::code;

    #[test]
    fn records_have_the_layout_of_signalfd_siginfo() {
        let detail = Detail::Value { pid: 7, uid: 8, value: 0x1_0000_0009 };
        let of_value = record(&SigInfo { signal: Signal::USR1, code: code::QUEUE, errno: 0, detail });
        let word = |at: usize| of_value[at];
        assert_eq!([0, 12, 16, 44, 48, 52].map(word), [10, 7, 8, 9, 9, 1]);
        let detail = Detail::Child { pid: 7, uid: 8, status: 3, user: 5, system: 6 };
        let of_child = record(&SigInfo { signal: Signal::CHLD, code: code::CLD_EXITED, errno: 0, detail });
        assert_eq!([8, 12, 40, 56, 64].map(|at| of_child[at]), [1, 7, 3, 5, 6]);
    }
}
