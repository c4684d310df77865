//! Delivery of signals: a thread does the work that its flags request before it returns to user mode.

use crate::process::exit;
use crate::rseq;
use crate::signal::core_file;
use crate::signal::frame;
use linux_raw_sys::general::__NR_restart_syscall;
use quire_linux_state::Linux;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::thread::{Thread, work};
use quire_linux_state::regs::UserRegs;
use quire_linux_state::signal::action::{Default as DefaultAction, Disposition, flag};
use quire_linux_state::signal::send::stop;
use quire_linux_state::signal::set::{SigSet, Signal};
use quire_linux_state::signal::{Action, SigInfo};
use quire_sync::Rank;
use quire_sync::atomic::Ordering;

const _: () = assert!(Rank::FAMILY.is_before(Rank::SIGNALS));

/// Does all work that the flags of `thread` request. The function does not return if the thread must end.
pub(crate) fn work<M: Machine>(linux: &'static Linux<M>, thread: &Thread<M>, regs: &mut UserRegs) {
    let mut handled = false;
    loop {
        let flags = thread.work.load(Ordering::Acquire);
        if flags & work::KILL != 0 {
            exit::exit_thread(linux);
        }
        if flags & work::TIMER != 0 {
            thread.see_to_timers();
        } else if flags & work::STOP != 0 {
            stop::stop_here(thread);
        } else if flags & work::SIGNAL != 0 {
            if let Some(info) = thread.receiver().take(|| take(thread)) {
                thread.look_for_signals();
                handled |= deliver(linux, thread, regs, info);
            }
        } else {
            break;
        }
    }
    if !handled {
        restart_without_handler(regs);
    }
    // Whether the interrupted call returns or restarts is decided now. `orig_rax` is cleared, so that later signal
    // frames do not decide again.
    regs.orig_rax = UserRegs::NOT_A_SYSCALL;
    // If no signal frame has stored the saved mask, it is restored here.
    if thread.restore_mask() && thread.work.load(Ordering::Acquire) & work::SIGNAL != 0 {
        work(linux, thread, regs);
    }
}

/// Takes the next signal to deliver. Signals of the thread come before signals of the process. Faults send signals to
/// the thread, and no signal may overtake a fault.
fn take<M: Machine>(thread: &Thread<M>) -> Option<SigInfo> {
    let wanted = SigSet(!thread.blocked().0);
    let stops = &thread.stop_taken;
    let (own, process) = (&thread.pending, &thread.process);
    loop {
        let info = own.take_to_deliver(wanted, stops).or_else(|| process.pending.take_to_deliver(wanted, stops))?;
        if let Some(info) = process.signal_taken(info) {
            return Some(info);
        }
    }
}

/// Delivers one signal. Returns true if a handler will run.
fn deliver<M: Machine>(linux: &'static Linux<M>, thread: &Thread<M>, regs: &mut UserRegs, info: SigInfo) -> bool {
    let process = &thread.process;
    let signal = info.signal;
    let action = process.with_actions(|actions| {
        let action = actions.get(signal);
        // With SA_RESETHAND, one of two concurrent threads gets the handler. A fork does not share actions with
        // SA_RESETHAND, so they can be changed without a copy.
        let taken =
            action.once().then(|| actions.update(signal, |now| now.once().then_some(Action { handler: 0, ..now })));
        taken.and_then(Result::ok).unwrap_or(action)
    });
    match action.disposition(signal) {
        Disposition::Ignore | Disposition::Default(DefaultAction::Ignore | DefaultAction::Continue) => false,
        Disposition::Default(DefaultAction::Stop) => {
            // An orphaned process group is only stopped by SIGSTOP, because no process could continue the group.
            if signal == Signal::STOP || !process.group().is_orphaned() {
                stop::begin(linux, thread, signal);
            }
            false
        }
        Disposition::Default(how @ (DefaultAction::Terminate | DefaultAction::Dump)) => {
            if linux.machine.verbose() {
                linux.machine.log(format_args!(
                    "process {} ends by signal {} ({:?})",
                    process.pid,
                    signal.number(),
                    info.detail
                ));
            }
            if process.begin_exit(i32::from(signal.number())) && how == DefaultAction::Dump {
                core_file::write(linux, thread, regs, &info);
            }
            false
        }
        Disposition::Handle(action) => {
            restart_with_handler(regs, &action);
            let ready = rseq::before_handler(linux, thread, regs);
            if ready.and_then(|()| frame::push(linux, thread, regs, &action, &info)).is_err() {
                // The frame has no room, or the rseq area is invalid. The thread gets SIGSEGV. If the signal was
                // SIGSEGV, its action is reset to the default first.
                if signal == Signal::SEGV {
                    linux.reset_action(process, Signal::SEGV);
                }
                linux.force_signal(thread, SigInfo::kernel(Signal::SEGV));
            }
            true
        }
    }
}

fn is_restart(regs: &UserRegs) -> Option<Errno> {
    if regs.orig_rax == UserRegs::NOT_A_SYSCALL {
        return None;
    }
    let value = regs.rax.wrapping_neg();
    let errno = Errno(u16::try_from(value).ok()?);
    errno.is_restart().then_some(errno)
}

/// The length of the `syscall` instruction in bytes.
const SYSCALL_LEN: u64 = 2;

fn again(regs: &mut UserRegs, number: u64) {
    regs.rax = number;
    regs.rip = regs.rip.wrapping_sub(SYSCALL_LEN);
}

fn restart_without_handler(regs: &mut UserRegs) {
    match is_restart(regs) {
        None => {}
        Some(Errno::ERESTARTBLOCK) => again(regs, u64::from(__NR_restart_syscall)),
        Some(_) => again(regs, regs.orig_rax),
    }
}

fn restart_with_handler(regs: &mut UserRegs, action: &Action) {
    match is_restart(regs) {
        None => {}
        Some(Errno::ERESTARTNOINTR) => again(regs, regs.orig_rax),
        Some(Errno::ERESTARTSYS) if action.flags & flag::RESTART != 0 => again(regs, regs.orig_rax),
        Some(_) => regs.rax = quire_linux_state::errno::encode(Err(Errno::EINTR)),
    }
    // Further signal frames must not restart the call again.
    regs.orig_rax = UserRegs::NOT_A_SYSCALL;
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn interrupted(errno: Errno) -> UserRegs {
        UserRegs { rip: 0x1002, orig_rax: 7, rax: quire_linux_state::errno::encode(Err(errno)), ..UserRegs::default() }
    }

    #[test]
    fn error_and_action_decide_whether_a_call_repeats() {
        let plain = Action { handler: 0x5000, ..Action::DEFAULT };
        let restarting = Action { flags: flag::RESTART, ..plain };
        let mut r = interrupted(Errno::ERESTARTSYS);
        restart_with_handler(&mut r, &plain);
        assert_eq!((r.rip, r.rax as i64), (0x1002, -4));
        let mut r = interrupted(Errno::ERESTARTSYS);
        restart_with_handler(&mut r, &restarting);
        assert_eq!((r.rip, r.rax), (0x1000, 7));
        let mut r = interrupted(Errno::ERESTARTNOHAND);
        restart_with_handler(&mut r, &restarting);
        assert_eq!(r.rax as i64, -4);
        let mut r = interrupted(Errno::ERESTARTNOHAND);
        restart_without_handler(&mut r);
        assert_eq!((r.rip, r.rax), (0x1000, 7));
        let mut r = interrupted(Errno::ERESTARTBLOCK);
        restart_without_handler(&mut r);
        assert_eq!((r.rip, r.rax), (0x1000, 219));
        let mut r = interrupted(Errno::EPERM);
        restart_without_handler(&mut r);
        assert_eq!(r, interrupted(Errno::EPERM));
    }

    #[test]
    fn a_fault_is_never_taken_for_a_call_to_restart() {
        let mut r = UserRegs { orig_rax: UserRegs::NOT_A_SYSCALL, ..interrupted(Errno::ERESTARTSYS) };
        let before = r;
        restart_without_handler(&mut r);
        assert_eq!(r, before);
    }
}
