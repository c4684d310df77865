//! The start of the Linux layer, of process 1, and of each program's thread.

use super::{LINUX, linux};
use crate::cpu::clock;
use crate::host::{ports, power};
use crate::machine::{scheduler, vm};
use crate::report::trace;
use crate::thread::kthread::kernel_thread;
use crate::trap;
use core::sync::atomic::{AtomicBool, Ordering};
use quire_fs::Limits;
use quire_fs::cpio::Archive;
use quire_fs::terminal::Size;
use quire_linux::start::{Boot, StartError};
use quire_linux_state::base::tables::TableMemory;
use quire_linux_state::{End, Errno, Linux, UserRegs};

/// The first program has begun.
static FIRST_RAN: AtomicBool = AtomicBool::new(false);
/// Starts the Linux layer and process 1. Process 1 is started by a separate thread, because unpacking files may sleep.
/// `memory`, the size of RAM in bytes, determines the size of the layer's tables.
pub fn start(archive: impl Archive + 'static, limits: Limits, memory: u64, tables: TableMemory) {
    let linux = match Linux::new(vm(), scheduler(), memory, tables, &quire_procfs::Procfs) {
        Ok(linux) => linux,
        Err(e) => panic!("the Linux layer cannot be built: {e:?}"),
    };
    LINUX.set(linux);
    kernel_thread("timers", notify_timer_files, 0);
    let archive: &'static mut dyn Archive = crate::memory::heap::keep(archive);
    let files = crate::memory::heap::keep((archive, limits));
    kernel_thread("first", first_thread, core::ptr::from_mut(files) as usize);
}

extern "C" fn notify_timer_files(_: usize) -> ! {
    linux().notify_timer_files()
}

extern "C" fn first_thread(files: usize) -> ! {
    // SAFETY: `start` passes a leaked box to this thread alone.
    let (initramfs, limits) = unsafe { &mut *(files as *mut (&'static mut dyn Archive, Limits)) };
    let mut start = || {
        let no_memory = |_| StartError::Step("opening the machine's ports", Errno::ENOMEM);
        let (io, error) = (ports::shared(0).map_err(no_memory)?, ports::shared(1).map_err(no_memory)?);
        quire_linux::start::start(
            linux(),
            Boot { initramfs: *initramfs, io, error, size: Size::default(), limits: *limits },
        )
    };
    if let Err(e) = start() {
        log!("{e}");
        power::off(End::Exit(e.status()));
    }
    scheduler().exit()
}

/// The first function of a program's thread, on its own stack. The thread loads `regs` when it enters user mode.
pub extern "C" fn user_thread(regs: &mut UserRegs) {
    // The flag is read before the swap, so that it is written only once and its cache line stays shared.
    if !FIRST_RAN.load(Ordering::Relaxed) && !FIRST_RAN.swap(true, Ordering::Relaxed) {
        ports::report(format_args!("ready {}", clock::now()));
        trace::begin();
        crate::report::watchdog::provoke::sleep_where_asked();
    }
    quire_linux::entry::first_return(linux(), regs);
    trap::leave(regs);
}
