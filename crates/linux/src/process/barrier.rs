//! `membarrier`: a memory barrier on every CPU that runs a thread of the caller's program.
//!
//! The caller interrupts each other CPU, and waits until that CPU has counted the interrupt. When the caller sees the
//! count, it also sees all earlier stores of that CPU, because x86 makes stores visible in order. The loads that the
//! other CPU's program does after its return from the interrupt see all stores that the caller did before. The return
//! from the interrupt also serialises that CPU's instruction fetch.

use crate::mutant::{Mutant, mutant};
use quire_linux_state::Ctx;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::{Interrupt, Machine};
use quire_sync::atomic::Ordering;
use quire_sync::atomic::fence_full;
use quire_sync::preempt_off;

const QUERY: u32 = 0;
const GLOBAL: u32 = 1;
const GLOBAL_EXPEDITED: u32 = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: u32 = 1 << 2;
const PRIVATE_EXPEDITED: u32 = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: u32 = 1 << 4;
const PRIVATE_EXPEDITED_SYNC_CORE: u32 = 1 << 5;
const REGISTER_PRIVATE_EXPEDITED_SYNC_CORE: u32 = 1 << 6;
const GET_REGISTRATIONS: u32 = 1 << 9;
/// The result of `QUERY`: all commands except the commands for restartable sequences.
const SUPPORTED: u32 = GLOBAL
    | GLOBAL_EXPEDITED
    | REGISTER_GLOBAL_EXPEDITED
    | PRIVATE_EXPEDITED
    | REGISTER_PRIVATE_EXPEDITED
    | PRIVATE_EXPEDITED_SYNC_CORE
    | REGISTER_PRIVATE_EXPEDITED_SYNC_CORE
    | GET_REGISTRATIONS;

/// `membarrier`
pub fn sys_membarrier<M: Machine>(ctx: &mut Ctx<'_, M>, command: u32, flags: u32, _cpu: i32) -> Result<usize, Errno> {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let registered = &ctx.space()?.barriers;
    let has = |bit| registered.load(Ordering::Relaxed) & bit != 0;
    match command {
        QUERY => return Ok(SUPPORTED as usize),
        // As on Linux, these commands make a barrier on the CPUs of all programs.
        GLOBAL | GLOBAL_EXPEDITED => barrier(ctx),
        REGISTER_GLOBAL_EXPEDITED | REGISTER_PRIVATE_EXPEDITED | REGISTER_PRIVATE_EXPEDITED_SYNC_CORE => {
            registered.fetch_or(command, Ordering::Relaxed);
        }
        PRIVATE_EXPEDITED if has(REGISTER_PRIVATE_EXPEDITED) => barrier(ctx),
        PRIVATE_EXPEDITED_SYNC_CORE if has(REGISTER_PRIVATE_EXPEDITED_SYNC_CORE) => barrier(ctx),
        PRIVATE_EXPEDITED | PRIVATE_EXPEDITED_SYNC_CORE => return Err(Errno::EPERM),
        // As on Linux, a registration for `SYNC_CORE` also shows the plain registration, although a program must make
        // the plain registration separately.
        GET_REGISTRATIONS => {
            let plain = if has(REGISTER_PRIVATE_EXPEDITED_SYNC_CORE) { REGISTER_PRIVATE_EXPEDITED } else { 0 };
            return Ok((registered.load(Ordering::Relaxed) | plain) as usize);
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// Interrupts every other CPU, and returns when each has passed a barrier.
fn barrier<M: Machine>(ctx: &Ctx<'_, M>) {
    let (machine, cpus) = (ctx.linux.machine, ctx.linux.scheduler.cpus());
    let taken = |cpu| machine.interrupts(cpu, Interrupt::Reschedule);
    // The calling thread may migrate during the loop. Then it has passed a barrier on the CPU that it left, so that CPU
    // needs no interrupt.
    let others = || {
        let me = preempt_off().cpu();
        (0..cpus).filter(move |cpu| *cpu != me)
    };
    interrupt_all(others, taken, |cpu| machine.kick(cpu));
}

/// Interrupts each CPU of `others` by `kick`, and waits until `taken`, its count of interrupts, has changed.
#[inline]
pub(crate) fn interrupt_all<I: Iterator<Item = usize>>(
    others: impl FnOnce() -> I,
    taken: impl Fn(usize) -> u64,
    kick: impl Fn(usize),
) {
    quire_sync::rank::assert_may_await_cpus();
    // The caller's earlier stores must be visible to each other CPU before that CPU handles its interrupt.
    if !mutant(Mutant::BarrierNoFence) {
        fence_full();
    }
    for cpu in others() {
        let before = taken(cpu);
        kick(cpu);
        while taken(cpu) == before && !mutant(Mutant::BarrierUnawaited) {
            quire_sync::hooks::relax();
        }
    }
    if !mutant(Mutant::BarrierNoLastFence) {
        fence_full();
    }
}
