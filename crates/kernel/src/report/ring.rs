//! The ring of the log's last lines, which programs can read.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};
use quire_linux_state::system::log::{LOG_LINES, LOG_TEXT, LogLine};

struct Lines {
    /// The number of the next line.
    next: u64,
    /// Line `n` is at `n % LOG_LINES`.
    lines: [LogLine; LOG_LINES],
}

struct Ring {
    held: AtomicBool,
    lines: UnsafeCell<Lines>,
}

// SAFETY: only the CPU that has set `held` accesses `lines`, with interrupts masked.
unsafe impl Sync for Ring {}

static RING: Ring = Ring {
    held: AtomicBool::new(false),
    lines: UnsafeCell::new(Lines { next: 0, lines: [LogLine::EMPTY; LOG_LINES] }),
};

/// Calls `with` with the lines, under their lock. Returns `None` without a call if another CPU holds the lock for too
/// long, because that CPU may have crashed.
fn with<R>(with: impl FnOnce(&mut Lines) -> R) -> Option<R> {
    let interrupts = crate::cpu::interrupts_off();
    let mut patience = 50_000_000u32;
    while RING.held.swap(true, Ordering::Acquire) {
        patience -= 1;
        if patience == 0 {
            crate::cpu::interrupts_restore(interrupts);
            return None;
        }
        core::hint::spin_loop();
    }
    // SAFETY: this CPU has set `held`, and interrupts are masked. So there is no other reference.
    let result = with(unsafe { &mut *RING.lines.get() });
    RING.held.store(false, Ordering::Release);
    crate::cpu::interrupts_restore(interrupts);
    Some(result)
}

/// Adds a line. May be called in any context.
pub fn add(micros: u64, text: &[u8]) {
    with(|all| {
        let number = all.next;
        let line = &mut all.lines[(number % LOG_LINES as u64) as usize];
        let len = text.len().min(LOG_TEXT);
        (line.number, line.micros, line.len) = (number, micros, len);
        line.text[..len].copy_from_slice(&text[..len]);
        all.next = number + 1;
    });
}

/// The first stored line whose number is at least `at`; `None` if there is no such line.
pub fn line(at: u64) -> Option<LogLine> {
    with(|all| {
        let at = at.max(all.next.saturating_sub(LOG_LINES as u64));
        (at < all.next).then(|| all.lines[(at % LOG_LINES as u64) as usize])
    })
    .flatten()
}
