//! Calls that could cause undefined behaviour, and that code without `unsafe` cannot make. Each example must not compile.
//!
//! A number is no thread:
//! ```compile_fail,E0423
//! quire_sync::hooks::unpark(quire_sync::ThreadHandle(0x10));
//! ```
//! ```compile_fail,E0133
//! quire_sync::hooks::unpark(quire_sync::ThreadHandle::from_number(0x10));
//! ```
//! ```compile_fail,E0603
//! quire_sync::hooks::threads::__quire_unpark(0x10);
//! ```
//! A thread does not become a CPU that another thread may be:
//! ```compile_fail,E0133
//! quire_sync::hooks::threads::become_cpu(0);
//! ```
//! A CPU stays on its thread:
//! ```compile_fail,E0277
//! let vm = quire_hosted::Hosted::boot(quire_hosted::Settings::default()).unwrap();
//! let cpu = quire_hosted::Cpu::attach(vm, 0).unwrap();
//! std::thread::spawn(move || cpu.interrupts());
//! ```
//! The kernel's tables take no frame that others may use:
//! ```compile_fail,E0133
//! fn overwrite(vm: &quire_vm::Vm<quire_hosted::Hosted>) {
//!     quire_pmap::KernelTables::<quire_hosted::X86_64>::new(vm.machine(), quire_vm::Pfn(0x105));
//! }
//! ```
//! ```compile_fail,E0133
//! fn overwrite(vm: &quire_vm::Vm<quire_hosted::Hosted>) {
//!     quire_pmap::Hardware::mmu(vm.machine()).kernel().share(vm.machine(), quire_vm::Pfn(0x105));
//! }
//! ```
//! ```compile_fail,E0133
//! fn map(vm: &'static quire_vm::Vm<quire_hosted::Hosted>) {
//!     let memory = quire_vm::MemoryType::WriteBack;
//!     quire_pmap::kernel_pages::map(vm, quire_hosted::Hosted::KERNEL_WINDOW.start, quire_vm::Pfn(0x105), memory);
//! }
//! ```
//! A system's spare tables stay its own:
//! ```compile_fail,E0624
//! fn drain(a: &quire_vm::Vm<quire_hosted::Hosted>, b: &quire_vm::Vm<quire_hosted::Hosted>) {
//!     quire_pmap::Hardware::mmu(a.machine()).drain(b);
//! }
//! ```
//! A reader of an object gets no slice of a page:
//! ```compile_fail,E0631
//! fn read(object: &quire_vm::ObjectRef<quire_hosted::Hosted>) {
//!     let _n = object.read::<()>(0, 8, &mut |bytes: &[u8]| Ok(bytes.len()));
//! }
//! ```
//! The bytes do not outlive the call that lends them:
//! ```compile_fail,E0521
//! fn read(object: &quire_vm::ObjectRef<quire_hosted::Hosted>) {
//!     let mut kept = None;
//!     let _n = object.read::<()>(0, 8, &mut |bytes| {
//!         kept = Some(bytes);
//!         Ok(bytes.len())
//!     });
//! }
//! ```
