//! Calls on streams. While such a call sleeps, its thread needs no kernel stack if the stream supports that.

use quire_fs::Io;
use quire_heap::Arc;
use quire_linux_state::file::host::File;
use quire_linux_state::process::sleep::{Sleep, StreamCall, StreamWait};
use quire_linux_state::{Ctx, Errno, Machine};

/// Makes an attempt of a call on a stream. With `nonblock` the call does not wait. If the result is
/// [`Errno::WOULD_SLEEP`], the stream has listed the thread as a waiter, and the caller must call [`sleep`].
#[inline(always)]
pub(crate) fn attempt<M: Machine, R>(
    ctx: &Ctx<'_, M>,
    nonblock: bool,
    call: impl FnOnce(&Io<'_>) -> Result<R, Errno>,
) -> Result<R, Errno> {
    let thread = ctx.thread;
    let interrupted = || thread.interrupted();
    // As on Linux, a call that has waited before continues to wait, even if its file has become nonblocking since.
    let nonblock = nonblock && thread.park.earlier().is_none();
    let done = call(&Io { nonblock, interrupted: &interrupted, park: Some(&thread.park), ..Io::WAIT });
    debug_assert!(
        matches!(done, Err(Errno::WOULD_SLEEP)) || thread.park.listing().queue().is_null(),
        "a stream goes on after it has listed the thread"
    );
    done
}

/// Stores the state of a call that must sleep after an [`attempt`]. Returns the error that the handler must return.
#[cold]
pub(crate) fn sleep<M: Machine>(ctx: &mut Ctx<'_, M>, file: Arc<File<M>>, call: StreamCall) -> Errno {
    let park = &ctx.thread.park;
    // The stored file keeps only its own wait queue alive. So the thread must be on that queue, because another queue
    // may be freed before the thread wakes.
    assert!(
        file.readiness().is_some_and(|own| park.is_on(own.sleepers())),
        "a stream lists a thread at another's queue"
    );
    let deadline = park.deadline();
    ctx.sleep(Sleep::Stream(StreamWait { file, call }), deadline)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
