//! Counts of the bytes that the entries of an address space cover, by class. Each change of a tree updates the counts,
//! so no query walks the tree.

use crate::machine::Machine;
use crate::map::entry::{Attributes, Entry, Flags};
use crate::types::Prot;
use quire_sync::atomic::{AtomicU64, Ordering};

/// The class of a range, by its protection and flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::map) enum Class {
    /// Private memory that a program can store into, except stacks.
    Data,
    /// Memory that grows downward.
    Stack,
    /// Memory that a program can execute but not store into, except stacks.
    Code,
    /// Anything else.
    Other,
}

/// The number of classes.
const CLASSES: usize = Class::Other as usize + 1;

/// The class for each value of the flags `SHARED` and `GROWS_DOWN` (the two lowest bits of the index) and of the rights
/// (the bits above).
static CLASS_OF: [Class; 32] = {
    let mut all = [Class::Other; 32];
    let mut at = 0;
    while at < all.len() {
        let (flags, prot) = (at as u16 & KIND, at as u8 >> KIND.count_ones());
        all[at] = if flags & Flags::GROWS_DOWN.bits() != 0 {
            Class::Stack
        } else if prot & Prot::WRITE.bits() != 0 {
            if flags & Flags::SHARED.bits() != 0 { Class::Other } else { Class::Data }
        } else if prot & Prot::EXEC.bits() != 0 {
            Class::Code
        } else {
            Class::Other
        };
        at += 1;
    }
    all
};
/// The flags that select a class. They are the two lowest flags.
const KIND: u16 = Flags::SHARED.bits() | Flags::GROWS_DOWN.bits();
const _: () = assert!(KIND == 3 && Prot::all().bits() == 7);

impl Class {
    /// Whether the class counts in the commit charge, because a store into it allocates a private page.
    #[inline(always)]
    pub fn is_committed(self) -> bool {
        matches!(self, Class::Data | Class::Stack)
    }

    /// The class by Linux's rules.
    #[inline(always)]
    pub fn of(a: &Attributes) -> Class {
        CLASS_OF[usize::from(a.flags.bits() & KIND | u16::from(a.prot.bits() & 7) << KIND.count_ones())]
    }
}

/// The flags of entries that show an object.
pub(in crate::map) const SHOWS_OBJECT: Flags = Flags::SHARED.union(Flags::FILE);
/// The flags by which an entry counts in more than its class.
const RARE: Flags = SHOWS_OBJECT.union(Flags::WIRED);

/// The wired bytes among `bytes` with these attributes.
fn wired(bytes: u64, a: &Attributes) -> u64 {
    if a.flags.contains(Flags::WIRED) { bytes } else { 0 }
}

/// 1 if an entry with these attributes shows an object, else 0.
fn objects(a: &Attributes) -> u64 {
    u64::from(a.flags.intersects(SHOWS_OBJECT))
}

/// Bytes that entries cover, or a change of that number. A negative change is stored modulo 2^64.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Covered {
    /// Bytes of all classes.
    pub bytes: u64,
    /// Bytes of wired entries.
    pub wired: u64,
    /// Number of entries that show a file or shared memory.
    pub objects: u64,
    pub(in crate::map) classes: [u64; CLASSES],
}

impl Covered {
    /// Private memory that a program can store into, except stacks.
    pub fn data(&self) -> u64 {
        self.classes[Class::Data as usize]
    }
    /// Memory that grows downward.
    pub fn stack(&self) -> u64 {
        self.classes[Class::Stack as usize]
    }
    /// Memory that a program can execute but not store into, except stacks.
    pub fn code(&self) -> u64 {
        self.classes[Class::Code as usize]
    }

    /// Adds `bytes` with these attributes.
    pub(in crate::map) fn come(&mut self, bytes: u64, a: &Attributes) {
        self.bytes = self.bytes.wrapping_add(bytes);
        self.wired = self.wired.wrapping_add(wired(bytes, a));
        let class = &mut self.classes[Class::of(a) as usize];
        *class = class.wrapping_add(bytes);
    }

    /// Adds all of an entry.
    pub(in crate::map) fn come_entry<M: Machine>(&mut self, e: &Entry<M>) {
        self.come(e.range().bytes(), &e.attributes());
        self.objects = self.objects.wrapping_add(objects(&e.attributes()));
    }

    /// The difference, `self` minus `other`.
    pub(in crate::map) fn less(&self, other: &Covered) -> Covered {
        let classes = core::array::from_fn(|i| self.classes[i].wrapping_sub(other.classes[i]));
        Covered {
            bytes: self.bytes.wrapping_sub(other.bytes),
            wired: self.wired.wrapping_sub(other.wired),
            objects: self.objects.wrapping_sub(other.objects),
            classes,
        }
    }

    /// The sum of both.
    pub(in crate::map) fn and(&self, other: &Covered) -> Covered {
        let classes = core::array::from_fn(|i| self.classes[i].wrapping_add(other.classes[i]));
        Covered {
            bytes: self.bytes.wrapping_add(other.bytes),
            wired: self.wired.wrapping_add(other.wired),
            objects: self.objects.wrapping_add(other.objects),
            classes,
        }
    }
}

/// The bytes that the entries of an arena (a part of the map with its own lock) cover. Only the arena's writer writes
/// these counts. Limits and statistics read them without a lock.
pub(in crate::map) struct Counts {
    bytes: AtomicU64,
    wired: AtomicU64,
    objects: AtomicU64,
    classes: [AtomicU64; CLASSES],
}

impl Counts {
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Counts { bytes: zero(), wired: zero(), objects: zero(), classes: core::array::from_fn(|_| zero()) }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn data(&self) -> u64 {
        self.classes[Class::Data as usize].load(Ordering::Relaxed)
    }

    /// Private memory that a program can store into: data and stacks.
    #[inline(always)]
    pub fn committed(&self) -> u64 {
        self.data() + self.classes[Class::Stack as usize].load(Ordering::Relaxed)
    }

    pub fn read(&self) -> Covered {
        let classes = core::array::from_fn(|i| self.classes[i].load(Ordering::Relaxed));
        let [wired, objects] = [&self.wired, &self.objects].map(|count| count.load(Ordering::Relaxed));
        Covered { bytes: self.bytes(), wired, objects, classes }
    }

    /// Adds an entry.
    ///
    /// # Requires
    /// The caller is the arena's writer.
    #[inline]
    pub fn come<M: Machine>(&self, e: &Entry<M>) {
        let (bytes, a) = (e.range().bytes(), e.attributes());
        add(&self.bytes, bytes);
        add(&self.classes[Class::of(&a) as usize], bytes);
        if a.flags.intersects(RARE) {
            add(&self.wired, wired(bytes, &a));
            add(&self.objects, objects(&a));
        }
    }

    /// Subtracts an entry.
    ///
    /// # Requires
    /// The caller is the arena's writer.
    #[inline]
    pub fn go<M: Machine>(&self, e: &Entry<M>) {
        let (bytes, a) = (e.range().bytes().wrapping_neg(), e.attributes());
        add(&self.bytes, bytes);
        add(&self.classes[Class::of(&a) as usize], bytes);
        if a.flags.intersects(RARE) {
            add(&self.wired, wired(bytes, &a));
            add(&self.objects, objects(&a).wrapping_neg());
        }
    }

    /// Moves `bytes` from one class to another.
    ///
    /// # Requires
    /// The caller is the arena's writer.
    #[inline]
    pub fn change_class(&self, bytes: u64, from: Class, to: Class) {
        if from != to {
            add(&self.classes[from as usize], bytes.wrapping_neg());
            add(&self.classes[to as usize], bytes);
        }
    }

    /// # Requires
    /// The caller is the arena's writer.
    pub fn change(&self, by: &Covered) {
        add(&self.bytes, by.bytes);
        add(&self.wired, by.wired);
        add(&self.objects, by.objects);
        self.classes.iter().zip(by.classes).for_each(|(count, by)| add(count, by));
    }
}

/// # Requires
/// No other thread writes `count`.
#[inline(always)]
fn add(count: &AtomicU64, by: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}
