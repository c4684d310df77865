//! The I/O interrupt controller: routes device lines to CPUs.

/// One controller. Its registers are accessed through an index register and a data register.
pub struct IoApic {
    registers: *mut u32,
    first: u32,
    lines: u32,
}

// SAFETY: the registers are device memory; the owner serialises users (`&mut self`).
unsafe impl Send for IoApic {}

/// How a line signals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signal {
    /// Whether the line signals by its level, not by edges.
    pub level: bool,
    /// Whether the line is active low, not active high.
    pub low: bool,
}

impl IoApic {
    /// The controller whose registers are mapped at `registers` and whose first global interrupt is `first`. Masks all
    /// lines.
    ///
    /// # Safety
    /// `registers` is a permanent uncached mapping of the controller, which no other code uses.
    pub unsafe fn new(registers: *mut u32, first: u32) -> IoApic {
        let mut apic = IoApic { registers, first, lines: 0 };
        apic.lines = ((apic.read(1) >> 16) & 0xff) + 1;
        for line in 0..apic.lines {
            apic.write(0x10 + 2 * line, 1 << 16);
        }
        apic
    }

    fn read(&mut self, index: u32) -> u32 {
        // SAFETY: `new`'s caller vouched that `registers` is a mapped I/O APIC that no other code uses.
        unsafe {
            self.registers.write_volatile(index);
            self.registers.add(4).read_volatile()
        }
    }
    fn write(&mut self, index: u32, value: u32) {
        // SAFETY: `new`'s caller vouched that `registers` is a mapped I/O APIC that no other code uses.
        unsafe {
            self.registers.write_volatile(index);
            self.registers.add(4).write_volatile(value);
        }
    }

    /// Routes global interrupt `gsi` as `vector` to the CPU with local APIC identifier `target`. Returns false if the
    /// line does not belong to this controller.
    pub fn route(&mut self, gsi: u32, vector: u8, target: u32, signal: Signal) -> bool {
        let Some(line) = gsi.checked_sub(self.first).filter(|l| *l < self.lines) else { return false };
        let low = vector as u32 | (signal.low as u32) << 13 | (signal.level as u32) << 15;
        self.write(0x10 + 2 * line + 1, target << 24);
        self.write(0x10 + 2 * line, low);
        true
    }
}
