//! The page index and its cursors, compared with a sorted map.

use crate::Input;
use quire_sync::PerCpu;
use quire_sync::epoch::{Domain, Retired, Slot as EpochSlot};
use quire_vm::object::index::{Cursor, FillError, Index, IndexNode, KEYS, Nodes, Slot};
use quire_vm::{OutOfMemory, Pfn};
use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ptr::NonNull;

/// The index's nodes come from the process's heap. An allocation can be made to fail.
#[derive(Clone, Copy)]
struct Boxes {
    domain: &'static Domain,
    fails: bool,
}

// SAFETY: each box is newly allocated memory of a node's layout.
unsafe impl Nodes for Boxes {
    fn allocate(self) -> Result<NonNull<IndexNode<Self>>, OutOfMemory> {
        if self.fails {
            return Err(OutOfMemory);
        }
        // SAFETY: the layout is not of size zero.
        NonNull::new(unsafe { std::alloc::alloc(Layout::new::<IndexNode<Self>>()) }.cast()).ok_or(OutOfMemory)
    }
    unsafe fn release(self, node: NonNull<IndexNode<Self>>) {
        // SAFETY: `allocate` allocated the node with this layout, and the index does not use it any more.
        unsafe { std::alloc::dealloc(node.as_ptr().cast(), Layout::new::<IndexNode<Self>>()) }
    }
    unsafe fn retire(self, node: *mut Retired, free: unsafe fn(*mut Retired)) {
        // SAFETY: the index passes each node once, unlinked, as `retire` of the domain requires.
        unsafe { self.domain.retire(node, free) }
    }
}

std::thread_local! {
    /// The epoch domain of this thread, which is its only CPU.
    static DOMAIN: &'static Domain = {
        let layout = Layout::from_size_align(PerCpu::<EpochSlot>::bytes(1), 128).expect("a layout");
        // SAFETY: the allocation is new and leaked, and has the size and alignment that `PerCpu` requires.
        let slots = unsafe {
            let memory = NonNull::new(std::alloc::alloc(layout)).expect("memory");
            PerCpu::new(memory, 1, |_| EpochSlot::new())
        };
        Box::leak(Box::new(Domain::new(slots)))
    };
}

/// Chooses a key. Keys lie near each other, at the edges of nodes, and near the largest page number of a file.
fn key(input: &mut Input<'_>) -> u64 {
    match input.byte() {
        0..=119 => u64::from(input.byte()),
        120..=199 => 4000 + u64::from(input.byte()),
        n @ 200..=251 => (1u64 << (n - 200)) - u64::from(input.byte() & 1),
        252..=254 => KEYS - 1 - u64::from(input.byte()),
        255 => input.long() % (KEYS + 2),
    }
}

fn value(input: &mut Input<'_>) -> Slot {
    let n = u64::from(input.byte());
    match n % 8 {
        0 => Slot::ZeroMarker,
        1 => Slot::Swap(n),
        _ => Slot::Page(Pfn(n)),
    }
}

/// Runs the bytes as operations on one index.
pub fn run(data: &[u8]) {
    quire_sync::hooks::threads::set_cpu(0);
    let input = &mut Input::new(data);
    let mut nodes = Boxes { domain: DOMAIN.with(|d| *d), fails: false };
    // SAFETY: there is only one domain.
    let index = unsafe { Index::<Boxes>::detached() };
    let mut model: BTreeMap<u64, Slot> = BTreeMap::new();
    while !input.is_over() {
        let pin = nodes.domain.pin();
        match input.below(8) {
            0..3 => {
                let (k, v) = (key(input), value(input));
                nodes.fails = input.byte() == 255;
                match (index.fill(k, v, nodes, &pin), model.get(&k)) {
                    (Err(FillError::BeyondKeys), None) => assert!(k >= KEYS),
                    (Err(FillError::OutOfMemory), None) => assert!(nodes.fails),
                    (Err(FillError::Taken(there)), Some(old)) => assert_eq!(there, *old),
                    (Ok(()), None) => {
                        model.insert(k, v);
                    }
                    (got, old) => panic!("filling {k} gave {got:?}, and {old:?} is there"),
                }
            }
            3 => {
                let k = key(input);
                match model.remove(&k) {
                    Some(v) => {
                        assert!(!index.clear(k, Slot::Page(Pfn(1 << 30)), &pin), "another slot content was cleared");
                        assert!(index.clear(k, v, &pin));
                    }
                    None => assert!(!index.clear(k, Slot::ZeroMarker, &pin)),
                }
            }
            4 => {
                let (k, v) = (key(input), value(input));
                if let Some(there) = model.get_mut(&k) {
                    assert!(index.replace(k, *there, v, &pin));
                    *there = v;
                }
            }
            5 => visit(input, &index, &model, &pin),
            6 => {
                let (a, b) = (key(input), key(input));
                index.prune(a.min(b)..a.max(b).saturating_add(1).min(KEYS), &pin);
            }
            _ => take(input, &index, &mut model, &pin),
        }
        drop(pin);
    }
    let pin = nodes.domain.pin();
    for (k, v) in &model {
        assert_eq!(index.get(*k, &pin), *v);
    }
    assert_eq!(index.is_empty(&pin), model.is_empty());
    index.dismantle(&pin);
    assert_eq!(index.fill(3, Slot::ZeroMarker, nodes, &pin), Err(FillError::Gone));
    drop(pin);
    nodes.domain.drain();
}

type Pin<'a> = quire_sync::epoch::Pinned<'a>;

/// Runs a cursor that pauses and resumes, and may step back.
fn visit(input: &mut Input<'_>, index: &Index<Boxes>, model: &BTreeMap<u64, Slot>, pin: &Pin<'_>) {
    let (a, b) = (key(input), key(input));
    let keys = a.min(b)..a.max(b).saturating_add(1).min(KEYS);
    if keys.is_empty() {
        return;
    }
    assert_eq!(index.count(keys.clone(), pin), model.range(keys.clone()).count() as u64);
    assert_eq!(index.first(keys.start, keys.end, pin), model.range(keys.clone()).next().map(|(k, v)| (*k, *v)));
    let mut cursor = Cursor::over(keys.clone());
    let mut from = keys.start;
    for _ in 0..input.byte() {
        let part = input.below(16);
        let got: Vec<_> = cursor.resume(index, pin).take(part).collect();
        let want: Vec<_> = model.range(from..keys.end).take(part).map(|(k, v)| (*k, *v)).collect();
        assert_eq!(got, want);
        from = cursor.key().min(keys.end);
        if let Some((k, _)) = got.first().filter(|_| part % 3 == 2) {
            cursor.rewind(*k);
            from = *k;
        }
        if cursor.is_done() {
            break;
        }
    }
    let rest: Vec<_> = cursor.resume(index, pin).collect();
    assert_eq!(rest, model.range(from..keys.end).map(|(k, v)| (*k, *v)).collect::<Vec<_>>());
    assert!(cursor.is_done());
}

/// Takes a slot for a moment, then fills it, empties it or leaves it unchanged.
fn take(input: &mut Input<'_>, index: &Index<Boxes>, model: &mut BTreeMap<u64, Slot>, pin: &Pin<'_>) {
    let k = key(input);
    let Some(there) = model.get(&k).copied() else {
        assert!(index.take(k, Slot::ZeroMarker, pin).is_none());
        return;
    };
    let mut taken = index.take(k, there, pin).expect("it is there");
    match input.below(3) {
        0 => {
            let v = value(input);
            taken.replace(v);
            drop(taken);
            model.insert(k, v);
        }
        1 => {
            taken.empty();
            model.remove(&k);
        }
        _ => drop(taken),
    }
    assert_eq!(index.get(k, pin), model.get(&k).copied().unwrap_or(Slot::Empty));
}
