//! The functions that QEMU calls: at the start, for each block of code that it translates, and for each access and
//! mark.
//!
//! QEMU runs a thread for each virtual CPU, and all of them call the plugin. Each CPU has its own table with a lock.
//! Another CPU acquires that lock only at a mark. A flag says whether accesses count.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    fs::File,
    io::Write as _,
    slice,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crate::{
    api, count,
    mark::Mark,
    profile,
    table::{Access, Table, conflicts},
};

/// The version of the plugin interface. QEMU reads it before it calls [`qemu_plugin_install`].
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)] // QEMU's name
pub static qemu_plugin_version: c_int = api::VERSION;

/// The kernel's code lies at this address and above.
pub(crate) const KERNEL: u64 = 1 << 63;
/// The most virtual CPUs for which the plugin has tables.
pub(crate) const CPUS: usize = 64;

static COUNTS: AtomicBool = AtomicBool::new(false);
static ACCESSES: AtomicU64 = AtomicU64::new(0);
static TABLES: [Mutex<Option<Table>>; CPUS] = [const { Mutex::new(None) }; CPUS];
pub(crate) static OUT: OnceLock<Mutex<File>> = OnceLock::new();

/// Installs the plugin. `out=FILE` is the output for conflicts. With `profile=all`, `profile=marked` or
/// `profile=between`, and `first=ADDRESS` in hexadecimal, the output is a profile instead ([`profile`]). With
/// `profile=count` it is a number of instructions ([`count`]).
///
/// # Safety
/// QEMU calls this function once, with the arguments of `qemu-plugin.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    info: *const api::Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: QEMU passes valid arguments, by this function's contract.
    let (info, words) = unsafe { (&*info, slice::from_raw_parts(argv, usize::try_from(argc).unwrap_or(0))) };
    if !(info.least..=info.current).contains(&api::VERSION) {
        eprintln!(
            "quire-plugin: written for version {} of QEMU's plugin interface; this QEMU offers {} to {}",
            api::VERSION,
            info.least,
            info.current
        );
        return 1;
    }
    let word = |name: &str| {
        // SAFETY: QEMU's arguments are strings.
        let mut words = words.iter().filter_map(|word| unsafe { CStr::from_ptr(*word) }.to_str().ok());
        words.find_map(|word| word.strip_prefix(name)).map(str::to_owned)
    };
    let Some(out) = word("out=") else {
        eprintln!("quire-plugin: give it out=FILE");
        return 1;
    };
    match File::options().append(true).open(&out) {
        Ok(file) => drop(OUT.set(Mutex::new(file))),
        Err(e) => {
            eprintln!("quire-plugin: {out}: {e}");
            return 1;
        }
    }
    let first = word("first=").and_then(|first| u64::from_str_radix(&first, 16).ok());
    let profile = word("profile=");
    if first.is_none() && profile.as_deref().is_some_and(|mode| mode != "count") {
        eprintln!("quire-plugin: a profile wants first=ADDRESS");
        return 1;
    }
    // SAFETY: QEMU gave the id to this plugin, and the callback lives as long as the process. QEMU calls this function
    // once.
    unsafe {
        match profile.as_deref() {
            None => api::qemu_plugin_register_vcpu_tb_trans_cb(id, translated),
            Some("count") => count::install(id),
            Some(mode) => profile::install(id, mode, first.unwrap_or(0)),
        }
    }
    0
}

extern "C" fn translated(_id: u64, block: *mut api::Block) {
    // SAFETY: the block and its instructions are QEMU's, and valid during this call.
    unsafe {
        for at in 0..api::qemu_plugin_tb_n_insns(block) {
            let instruction = api::qemu_plugin_tb_get_insn(block, at);
            let pc = api::qemu_plugin_insn_vaddr(instruction);
            if pc >= KERNEL {
                let data = pc as *mut c_void;
                api::qemu_plugin_register_vcpu_mem_cb(instruction, accessed, api::NO_REGISTERS, api::MEM_RW, data);
                continue;
            }
            let (data, len) = (api::qemu_plugin_insn_data(instruction), api::qemu_plugin_insn_size(instruction));
            if let Some(mark) = Mark::of(slice::from_raw_parts(data, len)) {
                let data = mark as usize as *mut c_void;
                api::qemu_plugin_register_vcpu_insn_exec_cb(instruction, marked, api::NO_REGISTERS, data);
            }
        }
    }
}

extern "C" fn accessed(cpu: c_uint, info: u32, at: u64, pc: *mut c_void) {
    if !COUNTS.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: this runs during the access's own callback, as the interface requires.
    let (physical, bytes, store) = unsafe {
        let place = api::qemu_plugin_get_hwaddr(info, at);
        if place.is_null() || api::qemu_plugin_hwaddr_is_io(place) {
            return;
        }
        let bytes = 1 << api::qemu_plugin_mem_size_shift(info);
        (api::qemu_plugin_hwaddr_phys_addr(place), bytes, api::qemu_plugin_mem_is_store(info))
    };
    ACCESSES.fetch_add(1, Ordering::Relaxed);
    if let Ok(mut table) = TABLES[cpu as usize % CPUS].lock() {
        table.get_or_insert_default().note(physical, bytes, Access { pc: pc as u64, at }, store);
    }
}

extern "C" fn marked(_cpu: c_uint, mark: *mut c_void) {
    let mark = mark as usize;
    if mark == Mark::On as usize {
        COUNTS.store(true, Ordering::Release);
    } else if mark == Mark::Off as usize {
        COUNTS.store(false, Ordering::Release);
    } else if mark == Mark::Round as usize || mark == Mark::Case as usize {
        let text = if mark == Mark::Round as usize { round() } else { "case\n".to_owned() };
        if let Some(mut out) = OUT.get().and_then(|out| out.lock().ok()) {
            // A write error is ignored: the reader of the output finds that a round is missing.
            let _ = out.write_all(text.as_bytes());
        }
    }
}

/// Returns the lines in conflict since the last round as text, with the number of accesses. Clears the tables.
fn round() -> String {
    let mut guards: Vec<_> = TABLES.iter().filter_map(|table| table.lock().ok()).collect();
    let none = Table::default();
    let tables: Vec<&Table> = guards.iter().map(|table| table.as_ref().unwrap_or(&none)).collect();
    let mut text = format!("round {}\n", ACCESSES.swap(0, Ordering::Relaxed));
    for c in conflicts(&tables) {
        let ((writer, store), (toucher, touch)) = (c.writer, c.toucher);
        text += &format!(
            "line {:x} {writer} {:x} {:x} {toucher} {:x} {:x} {}\n",
            c.line,
            store.pc,
            store.at,
            touch.pc,
            touch.at,
            u8::from(c.both_wrote)
        );
    }
    guards.iter_mut().filter_map(|table| table.as_mut()).for_each(Table::clear);
    text
}
