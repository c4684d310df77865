//! A thread that runs operations, and the way in which bytes become their arguments.
#![forbid(unsafe_code)]

use super::world::{Run, Scene, THINGS, V, World, give_back};
use crate::Input;
use quire_hosted::{Cpu, Hosted};
use quire_sync::Quota;
use quire_vm::map::kernel::{KernelMap, KernelRange};
use quire_vm::map::{SpaceRef, USER};
use quire_vm::phys::frames::{Contiguous, For, Frame};
use quire_vm::{Access, ObjectRef, PAGE_SIZE, Pfn, PhysRange, Prot, VirtRange};
use std::ops::Range;

/// The address of most mappings.
const BASE: u64 = 0x20_0020_0000 - 24 * PAGE_SIZE;
/// The number of pages that are used there.
const PAGES: u64 = 64;
/// The most frames that a thread holds.
const HELD: usize = 64;

/// One thread, and the resources that it holds.
pub struct Player<'a> {
    pub input: Input<'a>,
    pub cpus: &'a [Cpu; 2],
    pub world: &'a World,
    pub scene: &'a Scene,
    /// No other thread runs operations now.
    pub alone: bool,
    /// Single frames, of either system.
    frames: Vec<Frame>,
    /// Frames that were allocated together, with the number of their system.
    runs: Vec<(usize, Frame, Run)>,
    /// The ranges of kernel addresses that the thread holds.
    pub ranges: Vec<KernelRange<Hosted>>,
}

impl<'a> Player<'a> {
    pub fn new(input: Input<'a>, cpus: &'a [Cpu; 2], world: &'a World, scene: &'a Scene, alone: bool) -> Self {
        Player { input, cpus, world, scene, alone, frames: Vec::new(), runs: Vec::new(), ranges: Vec::new() }
    }

    /// Frees all resources that the thread holds.
    pub fn end(&mut self) {
        self.ranges.clear();
        for (n, first, run) in std::mem::take(&mut self.runs) {
            give_back(self.world.vms[n], first, &run);
        }
        let [here, there] = self.world.vms;
        for frame in std::mem::take(&mut self.frames) {
            if let Err(foreign) = here.free_frame(frame) {
                there.free_frame(foreign.0).expect("the frame is one of the two systems'");
            }
        }
    }

    /// Chooses a number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.input.below(n as usize) as u64
    }

    /// Chooses one of `all`.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.input.below(all.len())]
    }

    pub fn flip(&mut self) -> bool {
        self.input.byte() & 1 != 0
    }

    /// Chooses one of the systems. Returns it with its number.
    pub fn system(&mut self) -> (usize, V) {
        let n = self.input.below(2);
        (n, self.world.vms[n])
    }

    pub fn vm(&mut self) -> V {
        self.system().1
    }

    pub fn kernel(&mut self) -> &'static KernelMap<Hosted> {
        let n = self.input.below(2);
        self.world.kernels[n]
    }

    pub fn quota(&mut self) -> &'static Quota {
        let n = self.input.below(2);
        self.world.quotas[n]
    }

    /// Chooses a space of the scene. Returns it with its index in `Scene::spaces`.
    pub fn space(&mut self) -> (usize, SpaceRef<Hosted>) {
        let n = self.input.below(2 * THINGS);
        (n, self.scene.spaces[n].get())
    }

    /// Chooses an object of the scene. Returns it with its index in `Scene::objects`.
    pub fn object(&mut self) -> (usize, ObjectRef<Hosted>) {
        let n = self.input.below(2 * THINGS);
        (n, self.scene.objects[n].get())
    }

    /// Replaces one of the scene's spaces of the same memory system by `space`.
    pub fn keep_space(&mut self, space: SpaceRef<Hosted>) {
        let n = self.input.below(THINGS) + if space.is_of(self.world.vms[0]) { 0 } else { THINGS };
        self.scene.spaces[n].put(space);
    }

    /// Replaces one of the scene's objects of the same memory system by `object`.
    pub fn keep_object(&mut self, object: ObjectRef<Hosted>) {
        let n = self.input.below(THINGS) + if object.is_of(self.world.vms[0]) { 0 } else { THINGS };
        self.scene.objects[n].put(object);
    }

    pub fn keep_frame(&mut self, frame: Frame) {
        if self.frames.len() == HELD {
            self.free_one();
        }
        self.frames.push(frame);
    }

    /// Frees one frame to a system. The system must refuse a frame of the other system.
    pub fn free_one(&mut self) {
        let vm = self.vm();
        let Some(frame) = (!self.frames.is_empty()).then(|| self.frames.swap_remove(0)) else { return };
        if let Err(foreign) = vm.free_frame(frame) {
            assert_ne!(foreign.to_string(), "");
            self.frames.push(foreign.0);
        }
    }

    pub fn keep_run(&mut self, system: usize, first: Frame, run: Run) {
        if self.runs.len() == 8 {
            let (n, first, run) = self.runs.swap_remove(0);
            give_back(self.world.vms[n], first, &run);
        }
        self.runs.push((system, first, run));
    }

    /// Chooses mostly a page of a small range, sometimes an impossible address.
    pub fn address(&mut self) -> u64 {
        match self.input.byte() {
            0..8 => self.one_of(&[0, 1, u64::MAX, u64::MAX - PAGE_SIZE + 1, 1 << 63, USER.end, USER.end - PAGE_SIZE]),
            8..16 => BASE + u64::from(self.input.short()),
            16 => self.input.long(),
            n => BASE + u64::from(n) % PAGES * PAGE_SIZE,
        }
    }

    /// Chooses a range, which may be reversed, empty, misaligned or huge.
    pub fn range(&mut self) -> VirtRange {
        let start = self.address();
        let end = match self.input.byte() {
            0..16 => self.address(),
            n => start.wrapping_add(u64::from(n) % 24 * PAGE_SIZE),
        };
        VirtRange { start, end }
    }

    /// Chooses a range of an object's pages: mostly few, sometimes reversed or huge.
    pub fn pages(&mut self) -> Range<u64> {
        let start = self.page();
        match self.input.byte() {
            0..4 => start..self.page(),
            4 => 0..u64::MAX,
            n => start..start.saturating_add(u64::from(n % 16)),
        }
    }

    pub fn page(&mut self) -> u64 {
        match self.input.byte() {
            0..2 => u64::MAX,
            2..4 => 1 << 52,
            n => u64::from(n % 48),
        }
    }

    /// Chooses an offset into an object, in bytes.
    pub fn offset(&mut self) -> u64 {
        match self.input.byte() {
            0..4 => self.input.long(),
            n => u64::from(n % 32) * PAGE_SIZE + u64::from(n & 1),
        }
    }

    pub fn prot(&mut self) -> Prot {
        let rw = Prot::READ | Prot::WRITE;
        self.one_of(&[Prot::empty(), Prot::READ, rw, rw, rw, Prot::READ | Prot::EXEC, Prot::all(), Prot::WRITE])
    }

    pub fn access(&mut self) -> Access {
        self.one_of(&[Access::Read, Access::Write, Access::Exec])
    }

    pub fn behalf(&mut self) -> For {
        self.one_of(&[For::User, For::Table, For::Kernel, For::End])
    }

    pub fn contiguous(&mut self) -> Contiguous {
        let anywhere = Contiguous::anywhere(self.below(40));
        match self.input.byte() {
            0..200 => anywhere,
            200..220 => Contiguous { align: self.input.long(), ..anywhere },
            220..240 => Contiguous { count: self.input.long(), ..anywhere },
            _ => {
                let within = PhysRange { start: Pfn(self.input.long()), end: Pfn(self.input.long()) };
                Contiguous { within, ..anywhere }
            }
        }
    }
}

impl Drop for Player<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Dropping a frame panics, which would hide the first panic. So the frames are leaked.
            std::mem::forget(std::mem::take(&mut self.frames));
            std::mem::forget(std::mem::take(&mut self.runs));
        }
    }
}
