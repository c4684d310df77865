//! Giving private memory back (`madvise(MADV_DONTNEED)`): what was there is gone, and nothing old shows through.

use crate::backing::Backing;
use crate::error::OutOfMemory;
use crate::index::{Cursor, FillError, Slot};
use crate::machine::Machine;
use crate::object::Object;
use crate::remove;
use crate::sleep::MaySleep;
use crate::types::{PAGE_SIZE, VirtRange};
use crate::vm::Vm;
use core::ops::Range;
use core::ptr::NonNull;
use quire_sync::epoch::Pinned;

/// Takes the private content of `range` out of a chain. Afterwards it reads as zeroes, or as the file behind. Layers behind
/// that only this chain shows are emptied too; those that others see are hidden by cuts in the front. Work for what is there,
/// not for the length of the range. Out of memory (for cuts) leaves a part undone, which still reads as before.
///
/// Where the chain has layers that others see, the caller then clears the leaves of `range` and flushes: some may map pages
/// that are hidden now. (Faults cannot install such a leaf any more: they look at the front under the table page's lock.)
///
/// # Safety
/// The caller holds the lock of the map that the chain belongs to.
pub unsafe fn discard<M: Machine>(
    vm: &'static Vm<M>,
    front: NonNull<Backing<M>>,
    range: VirtRange,
    may: &mut MaySleep,
) -> Result<(), OutOfMemory> {
    // SAFETY: the caller's chain, which changes under the map's lock only.
    let front = unsafe { front.as_ref() };
    let mut layer = front.behind();
    while let Some(b) = layer {
        layer = b.behind();
        let Some(object) = b.object().filter(|o| o.is_private()) else { continue };
        let Some(window) = b.range().intersect(&range) else { continue };
        if object.is_exclusive() {
            remove::evict(object, keys(b, window), may);
        } else {
            hide(vm, front, b, object, window, may)?;
        }
    }
    let (Some(object), Some(window)) = (front.object(), front.range().intersect(&range)) else { return Ok(()) };
    if object.is_private() {
        let hides = |key| {
            let pin = vm.epoch().pin();
            hides(front, front.va(key), &pin)
        };
        let leave = front.behind().is_some().then_some(hides);
        remove::evict_leaving(object, keys(front, window), leave, may);
    }
    Ok(())
}

fn keys<M: Machine>(b: &Backing<M>, window: VirtRange) -> Range<u64> {
    let start = b.key(window.start);
    start..start + window.len() / PAGE_SIZE
}

/// Whether an anonymous layer behind `front` has something at `va`.
fn hides<M: Machine>(front: &Backing<M>, va: u64, pin: &Pinned<'_>) -> bool {
    core::iter::successors(front.behind(), |b| b.behind()).any(|b| {
        b.layer(va).is_some_and(|(object, key)| object.is_private() && object.index().get(key, pin) != Slot::Empty)
    })
}

/// Puts a cut into the front's empty slots over whatever `object` has in `window`.
fn hide<M: Machine>(
    vm: &'static Vm<M>,
    front: &Backing<M>,
    b: &Backing<M>,
    object: &Object<M>,
    window: VirtRange,
    may: &MaySleep,
) -> Result<(), OutOfMemory> {
    let mut cursor = Cursor::over(keys(b, window));
    loop {
        let pin = may.pin(vm.epoch());
        let Some((key, _)) = cursor.resume(object.index(), &pin).next() else { return Ok(()) };
        let Some(top) = front.touch(&pin)? else { return Ok(()) };
        match top.index().fill(front.key(b.va(key)), Slot::Cut, vm, &pin) {
            Err(FillError::OutOfMemory) => return Err(OutOfMemory),
            // Cut already, or a page, which leaves a cut when it goes.
            Ok(()) | Err(_) => {}
        }
    }
}
