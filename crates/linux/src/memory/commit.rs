//! The limit of memory that all programs together may commit: `vm.overcommit_memory` and its ratio.

use quire_linux_state::Linux;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::system::settings::Setting;
use quire_vm::PAGE_SIZE;
use quire_vm::map::CommitCharge;

/// The kind of requested memory.
#[derive(Clone, Copy)]
pub enum Add {
    Private,
    Shared,
    /// Private memory with MAP_NORESERVE.
    PrivateUnreserved,
    /// Shared memory with MAP_NORESERVE.
    SharedUnreserved,
}

/// The mode that refuses single requests that exceed all memory.
const HEURISTIC: i64 = 0;
/// The mode with a limit of the commit charge.
const STRICT: i64 = 2;

/// Checks a request for more memory. In heuristic mode, a request that exceeds all memory is refused. In strict mode,
/// shared memory beyond the limit is refused. The memory core checks the limit for private memory.
pub fn may_add<M: Machine>(linux: &Linux<M>, bytes: u64, add: Add) -> Result<(), Errno> {
    let all = linux.vm.frames().total() + linux.vm.swap().total();
    let refused = match (linux.settings.get(Setting::OvercommitMode), add) {
        (HEURISTIC, Add::Private | Add::Shared) => bytes / PAGE_SIZE > all,
        (STRICT, Add::Shared | Add::SharedUnreserved) => committed(linux).saturating_add(bytes) > limit(linux),
        _ => false,
    };
    if refused { Err(Errno::ENOMEM) } else { Ok(()) }
}

/// The limit in bytes, by the present ratio or the absolute setting. The limit is computed in all overcommit modes. All
/// of swap counts, and the ratio applies to memory alone.
pub fn limit<M: Machine>(linux: &Linux<M>) -> u64 {
    let number = |setting| linux.settings.get(setting).unsigned_abs();
    let memory = match number(Setting::OvercommitKib) {
        0 => linux.vm.frames().total().saturating_mul(number(Setting::OvercommitRatio)) / 100 * PAGE_SIZE,
        kib => kib.saturating_mul(1024),
    };
    memory.saturating_add(linux.vm.swap().total() * PAGE_SIZE)
}

/// The committed memory in bytes: private memory that programs may write to, and shared memory in use.
pub fn committed<M: Machine>(linux: &Linux<M>) -> u64 {
    linux.vm.map_memory().commit_charge().bytes() + linux.vm.stats().shared_pages() * PAGE_SIZE
}

/// Changes one of the three overcommit settings. EINVAL if the value is out of bounds.
pub fn set<M: Machine>(linux: &Linux<M>, setting: Setting, value: i64) -> Result<(), Errno> {
    linux.settings.set(setting, value)?;
    match setting {
        Setting::OvercommitRatio => linux.settings.set(Setting::OvercommitKib, 0)?,
        Setting::OvercommitKib => linux.settings.set(Setting::OvercommitRatio, 0)?,
        _ => {}
    }
    let wanted = || match linux.settings.get(Setting::OvercommitMode) {
        // The highest number means no limit, so the limit stays below it.
        STRICT => limit(linux).min(CommitCharge::UNLIMITED - 1),
        _ => CommitCharge::UNLIMITED,
    };
    // Another thread may change a setting between the two lines of the loop. So the loop repeats until the limit
    // matches the settings.
    let commit_charge = linux.vm.map_memory().commit_charge();
    while commit_charge.limit() != wanted() {
        commit_charge.set_limit(wanted());
    }
    Ok(())
}
