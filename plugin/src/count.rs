//! Counts the instructions of the kernel and of programs, between two marks.
//!
//! QEMU itself adds to the counters at the beginning of each block of code. That needs no call into the plugin, so the
//! machine is hardly slower. If a fault interrupts a block, the whole block counts, and counts again when it resumes.
//! The machine has one virtual CPU, so no other CPU adds.

use std::{
    ffi::{c_uint, c_void},
    io::Write as _,
    slice,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{
    api,
    mark::Mark,
    plugin::{KERNEL, OUT},
};

static OF_KERNEL: AtomicU64 = AtomicU64::new(0);
static OF_PROGRAMS: AtomicU64 = AtomicU64::new(0);
/// The values of both counters at the mark *begin*.
static BEGAN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Begins to count.
///
/// # Safety
/// Called once, while QEMU installs the plugin `id`.
pub unsafe fn install(id: u64) {
    // SAFETY: QEMU gave the id to this plugin, and the callback lives as long as the process.
    unsafe { api::qemu_plugin_register_vcpu_tb_trans_cb(id, translated) };
}

extern "C" fn translated(_id: u64, block: *mut api::Block) {
    // SAFETY: the block and its instructions are QEMU's, and valid during this call. The counters are static.
    unsafe {
        let count = api::qemu_plugin_tb_n_insns(block);
        let first = api::qemu_plugin_insn_vaddr(api::qemu_plugin_tb_get_insn(block, 0));
        let counter = if first >= KERNEL { &OF_KERNEL } else { &OF_PROGRAMS };
        let at = counter.as_ptr().cast::<c_void>();
        api::qemu_plugin_register_vcpu_tb_exec_inline(block, api::ADD_U64, at, count as u64);
        if first >= KERNEL {
            return;
        }
        for n in 0..count {
            let instruction = api::qemu_plugin_tb_get_insn(block, n);
            let (data, len) = (api::qemu_plugin_insn_data(instruction), api::qemu_plugin_insn_size(instruction));
            if let Some(mark @ (Mark::Begin | Mark::End)) = Mark::of(slice::from_raw_parts(data, len)) {
                let data = mark as usize as *mut c_void;
                api::qemu_plugin_register_vcpu_insn_exec_cb(instruction, marked, api::NO_REGISTERS, data);
            }
        }
    }
}

/// Saves the counters at the mark *begin*. At *end* writes their increase since then: `counted KERNEL PROGRAMS`.
extern "C" fn marked(_cpu: c_uint, mark: *mut c_void) {
    let now = [&OF_KERNEL, &OF_PROGRAMS].map(|counter| counter.load(Ordering::Relaxed));
    if mark as usize == Mark::Begin as usize {
        BEGAN.iter().zip(now).for_each(|(began, now)| began.store(now, Ordering::Relaxed));
        return;
    }
    let [kernel, programs] = [0, 1].map(|i: usize| now[i].wrapping_sub(BEGAN[i].load(Ordering::Relaxed)));
    if let Some(mut out) = OUT.get().and_then(|out| out.lock().ok()) {
        // A write error is ignored: the reader of the output finds that the line is missing.
        let _ = writeln!(out, "counted {kernel} {programs}");
    }
}
