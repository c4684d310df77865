//! Channel 0 of the 8254 timer as a reference interval. It is started early and read late, so that calibration overlaps
//! boot work. (Channel 2, the usual choice, needs port 0x61, which microVMs do not have.)

use crate::port::{in8, out8};

/// The timer's input clock in Hz.
pub const HZ: u64 = 1_193_182;
const CHANNEL_0: u16 = 0x40;
const COMMAND: u16 = 0x43;
const START: u16 = 0xffff;
/// Command: channel 0, low then high byte, mode 0 (count down once), binary.
const ONE_SHOT: u8 = 0b0011_0000;
/// Command: latch status and count of channel 0.
const READ_BACK: u8 = 0b1100_0010;
/// Status bits: the output is high, so the count has ended (`ENDED`); the count was not loaded yet (`NOT_LOADED`).
const ENDED: u8 = 0x80;
const NOT_LOADED: u8 = 0x40;

/// A count-down from 65535 that began when this value was made. Valid for 54 ms.
pub struct Interval(());

impl Interval {
    /// Starts the count-down.
    ///
    /// # Safety
    /// No other code uses the timer until the interval was read. The timer's interrupt is masked.
    pub unsafe fn start() -> Interval {
        // SAFETY: programs the channel as its manual says; the caller excludes other users.
        unsafe {
            out8(COMMAND, ONE_SHOT);
            out8(CHANNEL_0, START as u8);
            out8(CHANNEL_0, (START >> 8) as u8);
        }
        Interval(())
    }

    /// The ticks of [`HZ`] since the start. `None` after the counter has ended, or if there is no timer.
    pub fn elapsed(&self) -> Option<u64> {
        // SAFETY: a read-back command and the three reads that it requires.
        unsafe {
            out8(COMMAND, READ_BACK);
            let status = in8(CHANNEL_0);
            let low = in8(CHANNEL_0) as u16;
            let high = in8(CHANNEL_0) as u16;
            let count = high << 8 | low;
            match status & (ENDED | NOT_LOADED) {
                0 => Some((START - count) as u64),
                // The counter begins with the next pulse of its clock.
                NOT_LOADED => Some(0),
                _ => None,
            }
        }
    }
}
