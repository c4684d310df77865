//! The tracer's functions in a build without the feature `trace`. They compile to no code.

use crate::machine::Machine;
use quire_kernel::loader::command_line::Unusable;
use quire_kernel::loader::memory_map::Ram;
use quire_linux_state::UserRegs as Regs;
use quire_sync::cpuset::CpuMask;
use quire_sync::trace::{EventKind, Span};

#[inline(always)]
pub fn set_aside<'a>(_line: &'a [u8], _free: &mut Ram, _files: u64) -> Result<(), Unusable<'a>> {
    Ok(())
}
#[inline(always)]
pub fn begin() {}
#[inline(always)]
pub fn switch(_next: &quire_task::Thread<Machine>) {}
#[inline(always)]
pub fn ended(_thread: &quire_task::Thread<Machine>) {}
#[inline(always)]
pub fn shootdown(_targets: &CpuMask, _me: usize) -> Span {
    Span::begin(EventKind::Shootdown, 0, 0)
}
#[inline(always)]
pub fn call<R>(regs: &mut Regs, serve: impl FnOnce(&mut Regs) -> R) -> R {
    serve(regs)
}
#[inline(always)]
pub fn at<R>(_site: u64, f: impl FnOnce() -> R) -> R {
    f()
}
