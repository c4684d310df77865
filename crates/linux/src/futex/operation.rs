//! `FUTEX_WAKE_OP`: changes a second word, and wakes its waiters if its old value passes a comparison.

use crate::futex::wake;
use quire_linux_state::Ctx;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;

/// The decoded operation of an argument: operator, comparison, and their operands (signed, of 12 bits each).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Operation {
    operator: u32,
    operand: i32,
    comparison: u32,
    against: i32,
}

impl Operation {
    fn decode(raw: u32) -> Result<Operation, Errno> {
        let signed = |bits: u32| ((bits << 20) as i32) >> 20;
        let mut operand = signed(raw >> 12 & 0xfff);
        if raw & 0x8000_0000 != 0 {
            // As on Linux, a shift of more than 31 bits is taken modulo 32.
            operand = 1i32.wrapping_shl(operand as u32 & 31);
        }
        let out =
            Operation { operator: raw >> 28 & 7, operand, comparison: raw >> 24 & 15, against: signed(raw & 0xfff) };
        if out.operator > 4 || out.comparison > 5 { Err(Errno::ENOSYS) } else { Ok(out) }
    }

    fn apply(&self, old: u32) -> u32 {
        let by = self.operand as u32;
        match self.operator {
            0 => by,
            1 => old.wrapping_add(by),
            2 => old | by,
            3 => old & !by,
            _ => old ^ by,
        }
    }

    fn holds(&self, old: u32) -> bool {
        let old = old as i32;
        match self.comparison {
            0 => old == self.against,
            1 => old != self.against,
            2 => old < self.against,
            3 => old <= self.against,
            4 => old > self.against,
            _ => old >= self.against,
        }
    }
}

pub(super) fn wake_operation<M: Machine>(
    ctx: &Ctx<'_, M>,
    (first, second): (u64, u64),
    (wake_first, wake_second): (u32, u32),
    raw: u32,
    private: bool,
) -> Result<usize, Errno> {
    let operation = Operation::decode(raw)?;
    crate::futex::check_address(first)?;
    crate::futex::check_address(second)?;
    let machine = ctx.linux.machine;
    let mut old = machine.load_user_u32(second)?;
    loop {
        let found = machine.compare_exchange_user_u32(second, old, operation.apply(old))?;
        if found == old {
            break;
        }
        old = found;
    }
    let mut woken = wake(ctx.linux, ctx.thread, first, crate::futex::count(wake_first), crate::futex::ANY, private)?;
    if operation.holds(old) {
        woken += wake(ctx.linux, ctx.thread, second, crate::futex::count(wake_second), crate::futex::ANY, private)?;
    }
    Ok(woken)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn operations_are_taken_apart_as_linux_packs_them() {
        // FUTEX_OP(FUTEX_OP_ADD, -1, FUTEX_OP_CMP_GT, 5)
        let op = Operation::decode(1 << 28 | 4 << 24 | 0xfff << 12 | 5).expect("valid");
        assert_eq!(op, Operation { operator: 1, operand: -1, comparison: 4, against: 5 });
        assert_eq!(op.apply(7), 6);
        assert!(op.holds(6) && !op.holds(5));
        assert_eq!(Operation::decode(7 << 28), Err(Errno::ENOSYS));
        // The shift form: 1 << 3.
        assert_eq!(Operation::decode(0x8000_0000 | 3 << 12).expect("valid").operand, 8);
    }
}
