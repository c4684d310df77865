//! Restartable sequences: `rseq`.
//!
//! A thread registers an area of its memory. The kernel stores the number of the thread's CPU there, and reads which
//! critical section the thread is in. If the thread is switched away or gets a signal in a critical section, it
//! continues at the section's abort address.
//!
//! A switch away from a registered thread sets a [work bit](quire_linux_state::process::thread::work). The return to
//! user mode reads the area only if that bit is set. It stores the CPU's number only if the thread runs on another CPU
//! than at the last store.

use core::mem::size_of;
use quire_linux_state::base::plain::Plain;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::thread::{Rseq, Thread, work};
use quire_linux_state::regs::UserRegs;
use quire_linux_state::signal::{SigInfo, Signal};
use quire_linux_state::user::{USER_END, UserMemory, in_user_space};
use quire_linux_state::{Ctx, Linux};
use quire_sync::atomic::Ordering;

/// The size of the original `struct rseq` in bytes, which is the least length that a program may register.
const FIRST_LEN: u32 = 32;
/// The number of bytes of `struct rseq` that the kernel uses: `AT_RSEQ_FEATURE_SIZE`.
pub(crate) const FEATURE_LEN: u64 = 28;
/// `AT_RSEQ_ALIGN`.
pub(crate) const ALIGN: u64 = 32;
/// `RSEQ_FLAG_UNREGISTER`.
const UNREGISTER: u32 = 1;
/// `RSEQ_CPU_ID_UNINITIALIZED`.
const NO_CPU: u32 = u32::MAX;
/// Offsets in `struct rseq`: the CPU twice, the critical section, its flags, then the node and the concurrency id.
const SECTION: u64 = 8;
const FLAGS: u64 = 16;
const NODE: u64 = 20;

/// `struct rseq_cs`: a critical section.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Section {
    version: u32,
    flags: u32,
    start: u64,
    /// The length in bytes, up to the commit.
    len: u64,
    abort: u64,
}

// SAFETY: two words of four bytes and three of eight leave no padding, and every bit pattern is a value.
unsafe impl Plain for Section {}
const _: () = assert!(size_of::<Section>() == 32);

impl Section {
    /// Checks the section as Linux does. Refuses addresses outside user space, an abort address within the section, and
    /// an unknown version.
    fn check(&self) -> Result<(), Errno> {
        let end = self.start.checked_add(self.len);
        let in_user = [Some(self.start), end, Some(self.abort)].iter().all(|at| at.is_some_and(|at| at < USER_END));
        let abort_is_in = self.abort.wrapping_sub(self.start) < self.len;
        if in_user && !abort_is_in && self.version == 0 { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn holds(&self, ip: u64) -> bool {
        ip.wrapping_sub(self.start) < self.len
    }
}

/// Checks that an area may be registered. EINVAL for a wrong length or alignment, EFAULT outside user space.
fn check_area(at: u64, len: u32) -> Result<(), Errno> {
    if len < FIRST_LEN || !at.is_multiple_of(ALIGN) {
        return Err(Errno::EINVAL);
    }
    if in_user_space(at, len as usize) { Ok(()) } else { Err(Errno::EFAULT) }
}

/// `rseq`
pub fn sys_rseq<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    at: u64,
    len: u32,
    flags: u32,
    signature: u32,
) -> Result<usize, Errno> {
    let thread = ctx.thread;
    let now = thread.rseq.get();
    if now.at != 0 && flags & !UNREGISTER == 0 {
        if now.at != at || now.len != len {
            return Err(Errno::EINVAL);
        }
        if now.signature != signature {
            return Err(Errno::EPERM);
        }
        if flags == 0 {
            return Err(Errno::EBUSY);
        }
        store_cpu(&ctx.user(), at, [0, NO_CPU], [0, 0])?;
        thread.rseq.set(Rseq::NONE);
        return Ok(0);
    }
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    check_area(at, len)?;
    // The field may contain an old pointer to a critical section. With an invalid pointer, the next switch would end
    // the program, so the field is cleared.
    if ctx.read::<u64>(at + SECTION)? != 0 {
        ctx.write(at + SECTION, &0u64)?;
    }
    thread.rseq.set(Rseq { at, len, signature });
    thread.work.fetch_or(work::RSEQ, Ordering::AcqRel);
    Ok(0)
}

fn store_cpu<M: Machine>(
    memory: &UserMemory<'_, M>,
    at: u64,
    cpus: [u32; 2],
    node_and_id: [u32; 2],
) -> Result<(), Errno> {
    memory.write(at, &cpus)?;
    memory.write(at + NODE, &node_and_id)?;
    Ok(())
}

/// Aborts the critical section that `section` describes, if `regs` are in it, and clears the pointer in the area.
fn abort<M: Machine>(memory: &UserMemory<'_, M>, area: Rseq, section: u64, regs: &mut UserRegs) -> Result<(), Errno> {
    if section >= USER_END {
        return Err(Errno::EINVAL);
    }
    let found: Section = memory.read(section)?;
    found.check()?;
    let signature: u32 = memory.read(found.abort.wrapping_sub(4))?;
    if signature != area.signature {
        return Err(Errno::EINVAL);
    }
    if found.holds(regs.rip) {
        // The obsolete flags, which let a section continue, are an error.
        if found.flags != 0 || memory.read::<u32>(area.at + FLAGS)? != 0 {
            return Err(Errno::EINVAL);
        }
        regs.rip = found.abort;
    }
    memory.write(area.at + SECTION, &0u64)?;
    Ok(())
}

/// Aborts a critical section, and stores the CPU's number. Called before the return to user mode after a switch.
pub(crate) fn resume<M: Machine>(linux: &'static Linux<M>, thread: &Thread<M>, regs: &mut UserRegs) {
    // The bit is cleared first, because a later switch must set it again.
    thread.work.fetch_and(!work::RSEQ, Ordering::AcqRel);
    let area = thread.rseq.get();
    if area.at == 0 {
        return;
    }
    let memory = UserMemory(linux.machine);
    let mut update = || -> Result<(), Errno> {
        let [cpus, section]: [u64; 2] = memory.read(area.at)?;
        if section != 0 {
            abort(&memory, area, section, regs)?;
        }
        let cpu = quire_sync::current_cpu() as u32;
        if cpus != u64::from(cpu) | u64::from(cpu) << 32 {
            // The CPU's number also serves as the concurrency id, because a CPU runs one thread at a time.
            store_cpu(&memory, area.at, [cpu, cpu], [0, cpu])?;
        }
        Ok(())
    };
    if update().is_err() {
        linux.force_signal(thread, SigInfo::kernel(Signal::SEGV));
    }
}

/// Aborts a critical section. Called before a signal frame is pushed. Fails if the area is invalid.
pub(crate) fn before_handler<M: Machine>(
    linux: &'static Linux<M>,
    thread: &Thread<M>,
    regs: &mut UserRegs,
) -> Result<(), Errno> {
    let area = thread.rseq.get();
    if area.at == 0 {
        return Ok(());
    }
    let memory = UserMemory(linux.machine);
    match memory.read(area.at + SECTION)? {
        0 => Ok(()),
        section => abort(&memory, area, section, regs),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const GOOD: Section = Section { version: 0, flags: 0, start: 0x1000, len: 0x10, abort: 0x2000 };

    #[test]
    fn a_section_is_its_bytes_up_to_the_commit() {
        assert!(!GOOD.holds(0xfff) && GOOD.holds(0x1000) && GOOD.holds(0x100f) && !GOOD.holds(0x1010));
        assert!(!Section { len: 0, ..GOOD }.holds(0x1000));
    }

    #[test]
    fn bad_sections_are_refused() {
        assert_eq!(GOOD.check(), Ok(()));
        for bad in [
            Section { version: 1, ..GOOD },
            Section { start: USER_END, ..GOOD },
            Section { len: USER_END, ..GOOD },
            Section { len: u64::MAX, ..GOOD },
            Section { abort: USER_END, ..GOOD },
            Section { abort: 0x1000, ..GOOD },
            Section { abort: 0x100f, ..GOOD },
        ] {
            assert_eq!(bad.check(), Err(Errno::EINVAL), "{bad:?}");
        }
        // Abort addresses directly before and after the section are valid.
        for abort in [0xfff, 0x1010] {
            assert_eq!(Section { abort, ..GOOD }.check(), Ok(()));
        }
    }

    #[test]
    fn areas_have_a_length_an_alignment_and_a_place() {
        assert_eq!(check_area(0x1000, 32), Ok(()));
        assert_eq!(check_area(0x1020, 64), Ok(()));
        for (at, len) in [(0x1000, 31), (0x1000, 0), (0x1010, 32), (0x1001, 64)] {
            assert_eq!(check_area(at, len), Err(Errno::EINVAL));
        }
        assert_eq!(check_area(USER_END, 32), Err(Errno::EFAULT));
        assert_eq!(check_area(!31, 32), Err(Errno::EFAULT));
    }
}
