//! The part of QEMU's plugin interface (version 1, `qemu-plugin.h`) that the plugin uses. QEMU resolves these names
//! when it loads the plugin.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The version of the interface that this plugin uses.
pub const VERSION: c_int = 1;

/// Loads.
pub const MEM_R: c_int = 1;
/// Stores.
pub const MEM_W: c_int = 2;
/// Loads and stores.
pub const MEM_RW: c_int = 3;
/// An operation that QEMU does itself, without a call of the plugin: adds to a word.
pub const ADD_U64: c_int = 0;
/// A callback that reads no registers.
pub const NO_REGISTERS: c_int = 0;

/// The beginning of `qemu_info_t`.
#[repr(C)]
pub struct Info {
    /// The emulated architecture.
    pub target: *const c_char,
    /// The least version of the interface that QEMU accepts.
    pub least: c_int,
    /// The newest version of the interface that QEMU offers.
    pub current: c_int,
    /// Whether a whole machine is emulated.
    pub system: bool,
}

/// A block of code, during its translation.
#[repr(C)]
pub struct Block(c_void);
/// An instruction of a block.
#[repr(C)]
pub struct Instruction(c_void);
/// The address of an access.
#[repr(C)]
pub struct Place(c_void);

/// A callback for a block that is translated.
pub type OnBlock = extern "C" fn(id: u64, block: *mut Block);
/// A callback for the execution of an instruction.
pub type OnExecution = extern "C" fn(cpu: c_uint, data: *mut c_void);
/// A callback for the end of QEMU.
pub type OnEnd = extern "C" fn(id: u64, data: *mut c_void);
/// A callback for an access.
pub type OnAccess = extern "C" fn(cpu: c_uint, info: u32, at: u64, data: *mut c_void);

unsafe extern "C" {
    pub fn qemu_plugin_register_vcpu_tb_trans_cb(id: u64, on: OnBlock);
    pub fn qemu_plugin_register_vcpu_tb_exec_cb(
        block: *mut Block,
        on: OnExecution,
        registers: c_int,
        data: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_tb_exec_inline(block: *mut Block, operation: c_int, at: *mut c_void, by: u64);
    pub fn qemu_plugin_register_atexit_cb(id: u64, on: OnEnd, data: *mut c_void);
    pub fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    pub fn qemu_plugin_tb_get_insn(block: *const Block, at: usize) -> *mut Instruction;
    pub fn qemu_plugin_insn_data(instruction: *const Instruction) -> *const u8;
    pub fn qemu_plugin_insn_size(instruction: *const Instruction) -> usize;
    pub fn qemu_plugin_insn_vaddr(instruction: *const Instruction) -> u64;
    pub fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut Instruction,
        on: OnExecution,
        registers: c_int,
        data: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut Instruction,
        on: OnAccess,
        registers: c_int,
        which: c_int,
        data: *mut c_void,
    );
    pub fn qemu_plugin_mem_size_shift(info: u32) -> c_uint;
    pub fn qemu_plugin_mem_is_store(info: u32) -> bool;
    pub fn qemu_plugin_get_hwaddr(info: u32, at: u64) -> *mut Place;
    pub fn qemu_plugin_hwaddr_is_io(place: *const Place) -> bool;
    pub fn qemu_plugin_hwaddr_phys_addr(place: *const Place) -> u64;
}
