//! Numbers of `/proc/sys` that the kernel keeps: each has a first value and bounds.
//!
//! A row says whether the kernel acts on the number. The other numbers are there because programs read them, or
//! administrators set them at start.

use crate::Errno;
use quire_sync::atomic::{AtomicI64, Ordering};

/// A number's first value and its bounds.
#[derive(Clone, Copy)]
struct Row {
    first: i64,
    least: i64,
    most: i64,
}

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $first:expr, $least:expr, $most:expr;)*) => {
        /// The numbers.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Setting {
            $($(#[$doc])* $name,)*
        }

        const ROWS: &[Row] = &[$(Row { first: $first, least: $least, most: $most },)*];
        const ALL: &[Setting] = &[$(Setting::$name,)*];
    };
}

/// The most that Linux's settings of one `int` hold.
const INT: i64 = i32::MAX as i64;

settings! {
    /// `net.core.somaxconn`: the longest backlog. The kernel acts on it.
    MostBacklog: 4096, 0, INT;
    /// `net.core.rmem_max`: the most bytes for `SO_RCVBUF`. The kernel acts on it.
    MostReceive: 212_992, 2304, INT;
    /// `net.core.wmem_max`: the most bytes for `SO_SNDBUF`. The kernel acts on it.
    MostSend: 212_992, 4608, INT;
    /// `net.core.rmem_default`: bytes of a new socket's inbox. The kernel acts on it, but not for TCP.
    FirstReceive: 212_992, 2304, INT;
    /// `net.core.wmem_default`: bytes that a new socket may have sent. The kernel acts on it, but not for TCP.
    FirstSend: 212_992, 4608, INT;
    /// `net.core.netdev_max_backlog`: there are no packets.
    PacketBacklog: 1000, i32::MIN as i64, INT;
    /// `net.core.optmem_max`: as the limit on control messages.
    OptionMemory: 131_072, 0, INT;
    /// `net.ipv4.ip_unprivileged_port_start`. The kernel acts on it.
    FirstFreePort: 1024, 0, 65_535;
    /// `net.ipv4.tcp_keepalive_time`: the first value of TCP_KEEPIDLE.
    KeepAliveTime: 7200, 0, INT;
    /// `net.ipv4.tcp_keepalive_intvl`: the first value of TCP_KEEPINTVL.
    KeepAliveInterval: 75, 0, INT;
    /// `net.ipv4.tcp_keepalive_probes`: the first value of TCP_KEEPCNT.
    KeepAliveProbes: 9, 0, INT;
    /// `net.ipv4.tcp_fin_timeout`: the first value of TCP_LINGER2.
    FinTimeout: 60, 0, INT;
    /// `net.ipv4.tcp_syn_retries`: the first value of TCP_SYNCNT.
    ConnectTries: 6, 1, 127;
    /// `net.ipv4.tcp_synack_retries`: there are no segments.
    AcceptTries: 5, 0, 255;
    /// `net.ipv4.tcp_retries2`: there are no segments.
    Tries: 15, 0, 255;
    /// `net.ipv4.tcp_max_syn_backlog`: a connection is made at once.
    ConnectBacklog: 512, 0, INT;
    /// `net.ipv4.tcp_syncookies`: a connection is made at once.
    Cookies: 1, 0, 2;
    /// `net.ipv4.tcp_tw_reuse`: no connection waits at its end.
    ReuseWaiting: 2, 0, 2;
    /// `net.ipv4.tcp_timestamps`: there are no segments.
    Timestamps: 1, 0, 2;
    /// `net.ipv4.tcp_sack`: there are no segments.
    Selective: 1, 0, 1;
    /// `net.ipv4.tcp_window_scaling`: there are no segments.
    Scaling: 1, 0, 1;
    /// `net.ipv4.tcp_slow_start_after_idle`: there are no segments.
    SlowStart: 1, 0, 1;
    /// `net.ipv4.tcp_fastopen`: no data comes with a connection.
    FastOpen: 1, i32::MIN as i64, INT;
    /// `net.ipv4.ip_forward`: there is one interface.
    Forward: 0, i32::MIN as i64, INT;
    /// `net.ipv4.ip_default_ttl`: the first value of IP_TTL.
    Hops: 64, 1, 255;
    /// `kernel.core_uses_pid`: the name of a core file ends with the process's id. The kernel acts on it.
    CoreUsesPid: 0, 0, 1;
    /// `kernel.dmesg_restrict`: programs cannot read the kernel's log.
    HideLog: 0, 0, 1;
    /// `kernel.kptr_restrict`: no address of the kernel is shown.
    HidePointers: 0, 0, 2;
    /// `kernel.perf_event_paranoid`: no events are counted.
    HideEvents: 2, -1, INT;
    /// `fs.lease-break-time`: seconds that an opener waits for a lease. The kernel acts on it.
    LeaseTime: 45, 0, INT;
    /// `fs.aio-max-nr`: there is no asynchronous I/O.
    MostAsynchronous: 65_536, 0, i64::MAX;
    /// `vm.swappiness`: pageout chooses pages by their age alone.
    Swappiness: 60, 0, 200;
    /// `vm.dirty_ratio`: files in memory are not written back.
    DirtyRatio: 20, 0, 100;
    /// `vm.dirty_background_ratio`: the same.
    DirtyBackground: 10, 0, 100;
    /// `vm.dirty_expire_centisecs`: the same.
    DirtyExpire: 3000, 0, INT;
    /// `vm.dirty_writeback_centisecs`: the same.
    DirtyWriteback: 500, 0, INT;
    /// `vm.vfs_cache_pressure`: no name is cached, since all files are in memory.
    CachePressure: 100, 0, INT;
    /// `kernel.randomize_va_space`. With 0 each program lies at the same addresses; 1 and 2 do the same here.
    Randomize: 2, 0, 2;
    /// `kernel.sched_rt_runtime_us`: how long real-time threads have a CPU in each period while others wait. Without a
    /// limit: -1. The kernel acts on it, as on the next two.
    RealTimeRuntime: 950_000, -1, INT;
    /// `kernel.sched_rt_period_us`
    RealTimePeriod: 1_000_000, 1_000, INT;
    /// `kernel.sched_rr_timeslice_ms`: the turn under `SCHED_RR`. Zero and less mean the first value.
    RoundRobin: 100, i32::MIN as i64, INT;
    /// `vm.overcommit_memory`. 0: a single request for more than RAM and swap is refused. 1: no request is refused.
    /// 2: the commit charge of all programs has a limit. The kernel obeys this setting and the next two.
    OvercommitMode: 0, 0, 2;
    /// `vm.overcommit_ratio`: this limit, in percent of memory, beside swap.
    OvercommitRatio: 50, 0, INT;
    /// `vm.overcommit_kbytes`: the same in KiB, if it is not 0.
    OvercommitKib: 0, 0, i64::MAX;
    /// `net.ipv6.bindv6only`: the first value of IPV6_V6ONLY. The kernel obeys it.
    OnlySix: 0, 0, 1;
}

/// The present numbers.
pub struct Settings([AtomicI64; ROWS.len()]);

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

impl Settings {
    /// The first values.
    pub fn new() -> Self {
        Settings(core::array::from_fn(|at| AtomicI64::new(ROWS[at].first)))
    }

    /// The present value.
    pub fn get(&self, setting: Setting) -> i64 {
        self.0[setting as usize].load(Ordering::Relaxed)
    }

    /// Changes a value. EINVAL outside of its bounds.
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
    /// The setting with number `at`.
    pub const fn numbered(at: usize) -> Setting {
        ALL[at]
    }

    /// Its first value.
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
