//! Counts the kernel's instructions by block of code and by caller.

use std::{
    collections::HashMap,
    ffi::{c_int, c_uint, c_void},
    fmt::Write as _,
    io::Write as _,
    slice,
    sync::{Mutex, OnceLock},
};

use crate::{
    api,
    calls::{Calls, ROOT},
    instruction::{Flow, is_locked},
    mark::Mark,
    plugin::{CPUS, KERNEL, OUT},
};

/// A block of code, with the counts that one execution adds.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Block {
    pc: u64,
    instructions: u32,
    locked: u32,
    kernel: bool,
}

/// A CPU's position in the tree of calls.
#[derive(Clone, Copy)]
struct At {
    node: u32,
    /// The kernel was entered, and has not called a function yet.
    entered: bool,
}

struct Profile {
    /// The address that the kernel executes at its first exit to a program. Before that, firmware and the kernel's
    /// start run at the same addresses as programs.
    first: u64,
    /// Whether the first exit has happened.
    begun: bool,
    /// Whether only instructions between a program's marks count.
    marked: bool,
    /// Whether only instructions of a measured run count, between the marks of the program that starts it.
    between: bool,
    counts_now: bool,
    calls: Calls,
    cpus: [At; CPUS],
    blocks: Vec<Block>,
    known: HashMap<Block, u32>,
    /// The number of executions, by node and block.
    executed: HashMap<(u32, u32), u64>,
    /// The number of instructions of programs.
    programs: u64,
}

static PROFILE: OnceLock<Mutex<Profile>> = OnceLock::new();

/// Calls `f`. Returns `None` if the plugin has panicked elsewhere with the lock held.
fn with<T>(f: impl FnOnce(&mut Profile) -> T) -> Option<T> {
    Some(f(&mut *PROFILE.get()?.lock().ok()?))
}

/// Registers the profile. With the mode `all` it counts from the first instruction of a program on. With `marked` it
/// counts only between the program's marks, and with `between` only during a measured run. The kernel executes the
/// instruction at `first` before it leaves for a program.
///
/// # Safety
/// Called once, while QEMU installs the plugin `id`.
pub unsafe fn install(id: u64, mode: &str, first: u64) {
    let at = At { node: ROOT, entered: true };
    let profile = Profile {
        first,
        begun: false,
        marked: mode == "marked",
        between: mode == "between",
        counts_now: false,
        calls: Calls::default(),
        cpus: [at; CPUS],
        blocks: Vec::new(),
        known: HashMap::new(),
        executed: HashMap::new(),
        programs: 0,
    };
    let _ = PROFILE.set(Mutex::new(profile));
    // SAFETY: QEMU gave the id to this plugin, and the callbacks live as long as the process.
    unsafe {
        api::qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
        api::qemu_plugin_register_atexit_cb(id, ended, std::ptr::null_mut());
    }
}

extern "C" fn translated(_id: u64, block: *mut api::Block) {
    // SAFETY: the block and its instructions are QEMU's, and valid during this call.
    unsafe {
        let count = api::qemu_plugin_tb_n_insns(block);
        let pc = api::qemu_plugin_insn_vaddr(api::qemu_plugin_tb_get_insn(block, 0));
        let mut this = Block { pc, instructions: count as u32, locked: 0, kernel: pc >= KERNEL };
        for n in 0..count {
            let instruction = api::qemu_plugin_tb_get_insn(block, n);
            let (data, len) = (api::qemu_plugin_insn_data(instruction), api::qemu_plugin_insn_size(instruction));
            let code = slice::from_raw_parts(data, len);
            let on_access = |on, which: c_int, data: u64| {
                api::qemu_plugin_register_vcpu_mem_cb(instruction, on, api::NO_REGISTERS, which, data as *mut c_void);
            };
            if !this.kernel {
                if let Some(mark @ (Mark::On | Mark::Off | Mark::Begin | Mark::End)) = Mark::of(code) {
                    let data = mark as usize as *mut c_void;
                    api::qemu_plugin_register_vcpu_insn_exec_cb(instruction, marked, api::NO_REGISTERS, data);
                }
                continue;
            }
            if with(|p| p.first) == Some(api::qemu_plugin_insn_vaddr(instruction)) {
                let none = std::ptr::null_mut();
                api::qemu_plugin_register_vcpu_insn_exec_cb(instruction, begins, api::NO_REGISTERS, none);
            }
            this.locked += u32::from(is_locked(code));
            match Flow::of(code) {
                Flow::Call => on_access(called, api::MEM_W, api::qemu_plugin_insn_vaddr(instruction)),
                Flow::Return => on_access(returned, api::MEM_R, 0),
                Flow::On => {}
            }
        }
        with(|p| {
            let next = p.blocks.len() as u32;
            let number = *p.known.entry(this).or_insert(next);
            if number == next {
                p.blocks.push(this);
            }
            let data = number as usize as *mut c_void;
            api::qemu_plugin_register_vcpu_tb_exec_cb(block, executed, api::NO_REGISTERS, data);
        });
    }
}

extern "C" fn begins(_cpu: c_uint, _data: *mut c_void) {
    with(|p| p.begun = true);
}

extern "C" fn marked(_cpu: c_uint, mark: *mut c_void) {
    let is = |this: Mark| mark as usize == this as usize;
    with(|p| match (p.marked, p.between) {
        (true, _) if is(Mark::On) || is(Mark::Off) => p.counts_now = is(Mark::On),
        (_, true) if is(Mark::Begin) || is(Mark::End) => p.counts_now = is(Mark::Begin),
        _ => {}
    });
}

extern "C" fn executed(cpu: c_uint, number: *mut c_void) {
    with(|p| {
        let number = number as usize;
        let (block, at) = (p.blocks[number], &mut p.cpus[cpu as usize % CPUS]);
        if !block.kernel {
            *at = At { node: ROOT, entered: true };
            p.counts_now |= p.begun && !p.marked && !p.between;
        }
        match (p.counts_now, block.kernel) {
            (false, _) => {}
            (true, true) => *p.executed.entry((at.node, number as u32)).or_default() += 1,
            (true, false) => p.programs += u64::from(block.instructions),
        }
    });
}

extern "C" fn called(cpu: c_uint, _info: u32, slot: u64, site: *mut c_void) {
    with(|p| {
        let at = &mut p.cpus[cpu as usize % CPUS];
        *at = At { node: p.calls.call(site as u64, slot, at.entered), entered: false };
    });
}

extern "C" fn returned(cpu: c_uint, _info: u32, slot: u64, _data: *mut c_void) {
    with(|p| p.cpus[cpu as usize % CPUS] = At { node: p.calls.ret(slot), entered: false });
}

/// Writes the counts: `programs INSTRUCTIONS`, then `call PARENT SITE` for each node from 1 on, and `count NODE PC
/// INSTRUCTIONS LOCKED` for each block that was executed there.
extern "C" fn ended(_id: u64, _data: *mut c_void) {
    with(|p| {
        let mut text = format!("programs {}\n", p.programs);
        for call in p.calls.nodes() {
            let _ = writeln!(text, "call {} {:x}", call.parent, call.site);
        }
        for ((node, number), times) in &p.executed {
            let b = p.blocks[*number as usize];
            let (instructions, locked) = (u64::from(b.instructions) * times, u64::from(b.locked) * times);
            let _ = writeln!(text, "count {node} {:x} {instructions} {locked}", b.pc);
        }
        if let Some(mut out) = OUT.get().and_then(|out| out.lock().ok()) {
            // A write error is ignored: the reader of the output finds that `end` is missing.
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"end\n"));
        }
    });
}
