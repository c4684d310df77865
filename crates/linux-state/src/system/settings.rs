//! Numeric settings in `/proc/sys` that the kernel stores. Each has an initial value and bounds.
//!
//! The comment of a setting says whether the kernel acts on the setting. A setting that is only stored exists because
//! programs read it, or administrators set it at boot.

use crate::Errno;
use quire_sync::atomic::{AtomicI64, Ordering};

/// The initial value and the bounds of a setting.
#[derive(Clone, Copy)]
struct Row {
    first: i64,
    least: i64,
    most: i64,
}

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $first:expr, $least:expr, $most:expr;)*) => {
        /// The settings.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Setting {
            $($(#[$doc])* $name,)*
        }

        const ROWS: &[Row] = &[$(Row { first: $first, least: $least, most: $most },)*];
        const ALL: &[Setting] = &[$(Setting::$name,)*];
    };
}

/// The highest value of a setting that is an `int` on Linux.
const INT: i64 = i32::MAX as i64;

settings! {
    /// `net.core.somaxconn`: the longest backlog of a listening socket. The kernel acts on it.
    MostBacklog: 4096, 0, INT;
    /// `net.core.rmem_max`: the most bytes for `SO_RCVBUF`. The kernel acts on it.
    MostReceive: 212_992, 2304, INT;
    /// `net.core.wmem_max`: the most bytes for `SO_SNDBUF`. The kernel acts on it.
    MostSend: 212_992, 4608, INT;
    /// `net.core.rmem_default`: the initial `SO_RCVBUF` in bytes. The kernel acts on it, but not for TCP.
    FirstReceive: 212_992, 2304, INT;
    /// `net.core.wmem_default`: the initial `SO_SNDBUF` in bytes. The kernel acts on it, but not for TCP.
    FirstSend: 212_992, 4608, INT;
    /// `net.core.netdev_max_backlog`: only stored, because Quire has no network packets.
    PacketBacklog: 1000, i32::MIN as i64, INT;
    /// `net.core.optmem_max`: the limit on control messages; only stored.
    OptionMemory: 131_072, 0, INT;
    /// `net.ipv4.ip_unprivileged_port_start`: the first port for all users. The kernel acts on it.
    FirstFreePort: 1024, 0, 65_535;
    /// `net.ipv4.tcp_keepalive_time`: the initial value of TCP_KEEPIDLE.
    KeepAliveTime: 7200, 0, INT;
    /// `net.ipv4.tcp_keepalive_intvl`: the initial value of TCP_KEEPINTVL.
    KeepAliveInterval: 75, 0, INT;
    /// `net.ipv4.tcp_keepalive_probes`: the initial value of TCP_KEEPCNT.
    KeepAliveProbes: 9, 0, INT;
    /// `net.ipv4.tcp_fin_timeout`: the initial value of TCP_LINGER2.
    FinTimeout: 60, 0, INT;
    /// `net.ipv4.tcp_syn_retries`: the initial value of TCP_SYNCNT.
    ConnectTries: 6, 1, 127;
    /// `net.ipv4.tcp_synack_retries`: only stored, because Quire's TCP has no segments.
    AcceptTries: 5, 0, 255;
    /// `net.ipv4.tcp_retries2`: only stored, because Quire's TCP has no segments.
    Tries: 15, 0, 255;
    /// `net.ipv4.tcp_max_syn_backlog`: only stored, because a connection is established at once.
    ConnectBacklog: 512, 0, INT;
    /// `net.ipv4.tcp_syncookies`: only stored, because a connection is established at once.
    Cookies: 1, 0, 2;
    /// `net.ipv4.tcp_tw_reuse`: only stored, because there is no TIME-WAIT state.
    ReuseWaiting: 2, 0, 2;
    /// `net.ipv4.tcp_timestamps`: only stored, because Quire's TCP has no segments.
    Timestamps: 1, 0, 2;
    /// `net.ipv4.tcp_sack`: only stored, because Quire's TCP has no segments.
    Selective: 1, 0, 1;
    /// `net.ipv4.tcp_window_scaling`: only stored, because Quire's TCP has no segments.
    Scaling: 1, 0, 1;
    /// `net.ipv4.tcp_slow_start_after_idle`: only stored, because Quire's TCP has no segments.
    SlowStart: 1, 0, 1;
    /// `net.ipv4.tcp_fastopen`: only stored, because a connection request carries no data.
    FastOpen: 1, i32::MIN as i64, INT;
    /// `net.ipv4.ip_forward`: only stored, because there is one network interface.
    Forward: 0, i32::MIN as i64, INT;
    /// `net.ipv4.ip_default_ttl`: the initial value of IP_TTL.
    Hops: 64, 1, 255;
    /// `kernel.core_uses_pid`: the name of a core file ends with the process's id. The kernel acts on it.
    CoreUsesPid: 0, 0, 1;
    /// `kernel.dmesg_restrict`: whether only privileged programs may read the kernel's log. The kernel acts on it.
    HideLog: 0, 0, 1;
    /// `kernel.kptr_restrict`: only stored, because no kernel address is shown.
    HidePointers: 0, 0, 2;
    /// `kernel.perf_event_paranoid`: only stored, because no events are counted.
    HideEvents: 2, -1, INT;
    /// `fs.lease-break-time`: seconds that an opener waits for a lease. The kernel acts on it.
    LeaseTime: 45, 0, INT;
    /// `fs.aio-max-nr`: only stored, because there is no asynchronous I/O.
    MostAsynchronous: 65_536, 0, i64::MAX;
    /// `vm.swappiness`: only stored, because pageout chooses pages by their age alone.
    Swappiness: 60, 0, 200;
    /// `vm.dirty_ratio`: only stored, because files in memory are not written back.
    DirtyRatio: 20, 0, 100;
    /// `vm.dirty_background_ratio`: only stored, because files in memory are not written back.
    DirtyBackground: 10, 0, 100;
    /// `vm.dirty_expire_centisecs`: only stored, because files in memory are not written back.
    DirtyExpire: 3000, 0, INT;
    /// `vm.dirty_writeback_centisecs`: only stored, because files in memory are not written back.
    DirtyWriteback: 500, 0, INT;
    /// `vm.vfs_cache_pressure`: only stored, because no name is cached: all files are in memory.
    CachePressure: 100, 0, INT;
    /// `kernel.randomize_va_space`: 0 gives each program the same addresses. 1 and 2 both randomise them.
    Randomize: 2, 0, 2;
    /// `kernel.sched_rt_runtime_us`: how long real-time threads may use a CPU in each period while other threads wait;
    /// -1: no limit. The kernel acts on this setting, on `RealTimePeriod` and on `RoundRobin`.
    RealTimeRuntime: 950_000, -1, INT;
    /// `kernel.sched_rt_period_us`: the length in microseconds of the period for the limit on real-time threads.
    RealTimePeriod: 1_000_000, 1_000, INT;
    /// `kernel.sched_rr_timeslice_ms`: the time slice of `SCHED_RR`. Values of 0 and below mean the initial value.
    RoundRobin: 100, i32::MIN as i64, INT;
    /// `vm.overcommit_memory`. 0: a single request for more than RAM and swap is refused. 1: no request is refused. 2:
    /// the commit charge of all programs has a limit. The kernel acts on this setting, on `OvercommitRatio` and on
    /// `OvercommitKib`.
    OvercommitMode: 0, 0, 2;
    /// `vm.overcommit_ratio`: the limit of mode 2 as a percentage of memory, to which swap is added.
    OvercommitRatio: 50, 0, INT;
    /// `vm.overcommit_kbytes`: the limit of mode 2 in KiB. If it is not 0, it replaces the ratio.
    OvercommitKib: 0, 0, i64::MAX;
    /// `net.ipv6.bindv6only`: the initial value of IPV6_V6ONLY. The kernel acts on it.
    OnlySix: 0, 0, 1;
}

/// The present values of all settings.
pub struct Settings([AtomicI64; ROWS.len()]);

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

impl Settings {
    /// The initial values.
    pub fn new() -> Self {
        Settings(core::array::from_fn(|at| AtomicI64::new(ROWS[at].first)))
    }

    /// The present value.
    pub fn get(&self, setting: Setting) -> i64 {
        self.0[setting as usize].load(Ordering::Relaxed)
    }

    /// Sets a value. EINVAL if it is outside the setting's bounds.
    pub fn set(&self, setting: Setting, value: i64) -> Result<(), Errno> {
        let row = ROWS[setting as usize];
        if !(row.least..=row.most).contains(&value) {
            return Err(Errno::EINVAL);
        }
        self.0[setting as usize].store(value, Ordering::Relaxed);
        Ok(())
    }
}

impl Setting {
    /// The setting with the number `at`, in the order of the rows.
    pub const fn numbered(at: usize) -> Setting {
        ALL[at]
    }

    /// The setting's initial value.
    pub const fn first(self) -> i64 {
        ROWS[self as usize].first
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_setting_stays_within_its_bounds() {
        let settings = Settings::new();
        for (at, setting) in ALL.iter().enumerate() {
            let row = ROWS[at];
            assert_eq!(Setting::numbered(at), *setting);
            assert_eq!((settings.get(*setting), setting.first()), (row.first, row.first), "{setting:?}");
            assert!((row.least..=row.most).contains(&row.first), "{setting:?}");
            assert_eq!(settings.set(*setting, row.least - 1), Err(Errno::EINVAL));
            assert_eq!(settings.set(*setting, row.most), Ok(()));
            assert_eq!(settings.get(*setting), row.most);
        }
    }
}
