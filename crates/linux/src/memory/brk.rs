//! `brk`, which changes the size of the heap.

use crate::memory::commit::Add;
use quire_linux_state::Ctx;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::memory::page_up;
use quire_linux_state::process::limits::which;
use quire_linux_state::user::USER_END;
use quire_vm::map::{MapRequest, Placement, Tag, Wire};
use quire_vm::{PAGE_SIZE, VirtRange};

/// The bytes above the heap that stay unmapped, so that an overrun does not reach the next mapping. As on Linux, this
/// is one page.
const GUARD: u64 = PAGE_SIZE;

/// `brk`. The call never fails, and returns the resulting break.
pub fn sys_brk<M: Machine>(ctx: &mut Ctx<'_, M>, wanted: u64) -> Result<usize, Errno> {
    let Ok(memory) = ctx.space() else { return Ok(0) };
    let mut heap = memory.heap.lock();
    if wanted < heap.start || wanted >= USER_END {
        return Ok(heap.end as usize);
    }
    let (Some(from), Some(to)) = (page_up(heap.end), page_up(wanted)) else { return Ok(heap.end as usize) };
    if to < from {
        if memory.unmap(VirtRange { start: to, end: from }).is_err() {
            return Ok(heap.end as usize);
        }
    } else if to > from {
        let too_much = wanted - heap.start > ctx.process().soft_limit(which::DATA)
            || crate::memory::commit::may_add(ctx.linux, to - from, Add::Private).is_err()
            || (memory.future() != Wire::No && crate::memory::lock::may_add(ctx, to - from).is_err())
            || memory.is_mapped(VirtRange { start: from, end: to.saturating_add(GUARD) });
        let request = MapRequest { tag: Tag::Heap, ..MapRequest::private(Placement::FixedNoReplace(from), to - from) };
        if too_much || memory.map(&request).is_err() {
            return Ok(heap.end as usize);
        }
    }
    heap.end = wanted;
    Ok(wanted as usize)
}
