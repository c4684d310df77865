//! Stage one: kernel threads only.
use crate::machine::Machine;
use quire_pmap_x86_64::X86Pmap;
use quire_task::{Thread, ThreadRef};
pub type Payload = ();
pub unsafe fn pmap(_t: &Thread<Machine>) -> Option<&X86Pmap> { None }
pub fn reap(t: ThreadRef<Machine>) { drop(t); }

pub fn kernel_payload() -> Payload {}
pub fn start(_command_line: &[u8]) {
    for i in 0..6 { spawn(i); }
}
fn spawn(i: usize) {
    use alloc::boxed::Box;
    use core::ptr::NonNull;
    let c = crate::context::Context::kernel(main, i).unwrap();
    unsafe fn rel(t: NonNull<Thread<Machine>>) { drop(unsafe { Box::from_raw(t.as_ptr()) }) }
    let t = Box::leak(Box::new(Thread::new(c, (), rel)));
    crate::machine::scheduler().spawn(unsafe { ThreadRef::adopt(NonNull::from(t)) });
}
extern "C" fn main(i: usize) -> ! {
    for k in 0..3 {
        log!("thread {i} step {k} on CPU {}", crate::cpu::id());
        quire_sync::hooks::park(Some(crate::clock::now() + 1_000_000 * (i as u64 + 1)));
        let t = crate::clock::now() + 30_000_000;
        while crate::clock::now() < t {}
    }
    if i == 5 {
        let z = quire_vm::frames::Fill::Zeroed;
        let t0 = crate::clock::now();
        for _ in 0..1000 { let f = crate::machine::vm().alloc_frame(z, quire_vm::frames::For::User).unwrap(); crate::machine::vm().free_frame(f); }
        log!("1000 zeroed frames: {} us", (crate::clock::now() - t0) / 1000);
        let t0 = crate::clock::now();
        for _ in 0..1000 { crate::machine::scheduler().yield_now(); }
        log!("1000 yields: {} us", (crate::clock::now() - t0) / 1000);
        for _ in 0..1000 { spawn(7); crate::machine::scheduler().yield_now(); }
        quire_sync::hooks::park(Some(crate::clock::now() + 100_000_000));
        quire_drivers::debug_exit::exit(quire_drivers::debug_exit::POWER_OFF);
    }
    crate::machine::scheduler().exit()
}
