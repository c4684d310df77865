//! `siginfo_t`: the reason of a signal.

use crate::signal::set::Signal;

/// The data of a signal that depends on its origin. Each variant has its own layout in `siginfo_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// No data.
    None,
    /// A signal of `kill`, `tgkill`, or of the kernel for a process.
    Sender {
        /// The sending process.
        pid: u32,
        /// The user id of the sender.
        uid: u32,
    },
    /// A signal of `sigqueue`, with a sender and a value.
    Value {
        /// The sending process.
        pid: u32,
        /// The user id of the sender.
        uid: u32,
        /// `sigval_t`.
        value: u64,
    },
    /// A SIGCHLD that reports a change of a child.
    Child {
        /// The child's id.
        pid: u32,
        /// The child's user id.
        uid: u32,
        /// The exit status, or the number of the signal.
        status: i32,
        /// User time in clock ticks.
        user: u64,
        /// System time in clock ticks.
        system: u64,
    },
    /// A fault at this address.
    Address(u64),
    /// An event of an open file.
    Band {
        /// The events, as in the results of `poll`.
        band: u64,
        /// The descriptor.
        fd: i32,
    },
    /// The expiry of a timer.
    Timer {
        /// The timer's id.
        id: i32,
        /// How many more times the timer expired.
        overrun: i32,
        /// `sigval_t`.
        value: u64,
        /// The number of the timer's setting, which is not passed to programs.
        setting: u32,
    },
}

/// A signal and its reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SigInfo {
    /// The signal.
    pub signal: Signal,
    /// `si_code`.
    pub code: i32,
    /// `si_errno`.
    pub errno: i32,
    /// The data that depends on the origin.
    pub detail: Detail,
}

/// Values of `si_code`.
#[allow(missing_docs)]
pub mod code {
    pub const USER: i32 = 0;
    pub const KERNEL: i32 = 0x80;
    pub const QUEUE: i32 = -1;
    pub const TIMER: i32 = -2;
    pub const MESGQ: i32 = -3;
    pub const TKILL: i32 = -6;
    pub const ILL_ILLOPN: i32 = 2;
    pub const FPE_INTDIV: i32 = 1;
    pub const FPE_FLTDIV: i32 = 3;
    pub const FPE_FLTOVF: i32 = 4;
    pub const FPE_FLTUND: i32 = 5;
    pub const FPE_FLTRES: i32 = 6;
    pub const FPE_FLTINV: i32 = 7;
    pub const SEGV_MAPERR: i32 = 1;
    pub const SEGV_ACCERR: i32 = 2;
    pub const BUS_ADRALN: i32 = 1;
    pub const BUS_ADRERR: i32 = 2;
    pub const TRAP_TRACE: i32 = 2;
    pub const CLD_EXITED: i32 = 1;
    pub const CLD_KILLED: i32 = 2;
    pub const CLD_DUMPED: i32 = 3;
    pub const CLD_STOPPED: i32 = 5;
    pub const CLD_CONTINUED: i32 = 6;
}

/// The size of `siginfo_t` in bytes.
pub const SIGINFO_LEN: usize = 128;

impl SigInfo {
    /// A signal that the kernel itself sends.
    pub const fn kernel(signal: Signal) -> SigInfo {
        SigInfo { signal, code: code::KERNEL, errno: 0, detail: Detail::Sender { pid: 0, uid: 0 } }
    }
    /// A signal that a fault at `address` raises.
    pub const fn fault(signal: Signal, code: i32, address: u64) -> SigInfo {
        SigInfo { signal, code, errno: 0, detail: Detail::Address(address) }
    }

    /// The bytes of `siginfo_t` on x86-64.
    pub fn encode(&self) -> [u8; SIGINFO_LEN] {
        let mut out = [0u8; SIGINFO_LEN];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &i32::from(self.signal.number()).to_le_bytes());
        put(4, &self.errno.to_le_bytes());
        put(8, &self.code.to_le_bytes());
        match self.detail {
            Detail::None => {}
            Detail::Sender { pid, uid } => {
                put(16, &pid.to_le_bytes());
                put(20, &uid.to_le_bytes());
            }
            Detail::Value { pid, uid, value } => {
                put(16, &pid.to_le_bytes());
                put(20, &uid.to_le_bytes());
                put(24, &value.to_le_bytes());
            }
            Detail::Child { pid, uid, status, user, system } => {
                put(16, &pid.to_le_bytes());
                put(20, &uid.to_le_bytes());
                put(24, &status.to_le_bytes());
                put(32, &user.to_le_bytes());
                put(40, &system.to_le_bytes());
            }
            Detail::Address(address) => put(16, &address.to_le_bytes()),
            Detail::Band { band, fd } => {
                put(16, &band.to_le_bytes());
                put(24, &fd.to_le_bytes());
            }
            Detail::Timer { id, overrun, value, .. } => {
                put(16, &id.to_le_bytes());
                put(20, &overrun.to_le_bytes());
                put(24, &value.to_le_bytes());
            }
        }
        out
    }

    /// Reads the `siginfo_t` argument of `rt_sigqueueinfo`, which has the layout of a queued value.
    pub fn decode(signal: Signal, raw: &[u8; SIGINFO_LEN]) -> SigInfo {
        let word = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        SigInfo {
            signal,
            errno: word(4) as i32,
            code: word(8) as i32,
            detail: Detail::Value {
                pid: word(16),
                uid: word(20),
                value: u64::from(word(24)) | u64::from(word(28)) << 32,
            },
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_linux_puts_them() {
        let info = SigInfo {
            signal: Signal::CHLD,
            code: code::CLD_EXITED,
            errno: 0,
            detail: Detail::Child { pid: 7, uid: 1, status: 3, user: 5, system: 6 },
        };
        let raw = info.encode();
        assert_eq!(raw[0], 17);
        assert_eq!((raw[8], raw[16], raw[20], raw[24], raw[32], raw[40]), (1, 7, 1, 3, 5, 6));
        let raw = SigInfo::fault(Signal::SEGV, code::SEGV_ACCERR, 0x1122_3344_5566).encode();
        assert_eq!(raw[16..24], 0x1122_3344_5566u64.to_le_bytes());
    }

    #[test]
    fn a_timers_signal_gives_its_id_and_its_overrun() {
        let detail = Detail::Timer { id: 7, overrun: 9, value: 0x1122_3344_5566, setting: 1 };
        let raw = SigInfo { signal: Signal::ALRM, code: code::TIMER, errno: 0, detail }.encode();
        assert_eq!((raw[8] as i8, raw[16], raw[20]), (-2, 7, 9));
        assert_eq!(raw[24..32], 0x1122_3344_5566u64.to_le_bytes());
        assert!(raw[32..].iter().all(|b| *b == 0));
    }

    #[test]
    fn a_queued_value_survives_the_way_through_user_memory() {
        let info = SigInfo {
            signal: Signal::USR1,
            code: code::QUEUE,
            errno: 0,
            detail: Detail::Value { pid: 1, uid: 2, value: 0xdead_beef_0000_0001 },
        };
        assert_eq!(SigInfo::decode(Signal::USR1, &info.encode()), info);
    }
}
