//! Finds the code that caused an event, and converts its addresses into names of functions.

use std::path::Path;

use crate::{
    failure::Result,
    profile::{Functions, KERNEL},
};

/// The beginnings of the names of functions between an event and its cause: locks, the shootdown, the tracer. Such
/// functions are skipped if another caller is known.
const PLUMBING: &[&str] = &[
    "core::",
    "alloc::",
    "quire_sync::",
    "quire_kernel::report::trace",
    "quire_kernel::memory::shootdown",
    "quire_kernel::machine::Machine",
    "quire_vm::map::space::SpaceRef",
    "quire_pmap::",
    "quire_pmap_x86_64::",
    "quire_vm::tlb::flush",
    "quire_vm::sleep",
    "__quire",
    "__rustc",
    "?",
];

/// The functions of the kernel, and those of the program if its addresses are known.
#[derive(Debug, Default)]
pub struct Sites {
    kernel: Functions,
    /// The program's name in the guest, and its functions.
    program: Option<(String, Functions)>,
}

impl Sites {
    /// Reads the functions of both files. `program` is the path on the host of the program that the guest runs.
    pub fn read(kernel: &Path, program: Option<&Path>) -> Result<Self> {
        let kernel = Functions::read(kernel)?;
        let program = program.and_then(|path| {
            let name = path.file_name()?.to_string_lossy().chars().take(15).collect();
            Some((name, Functions::of_fixed(path)?))
        });
        Ok(Sites { kernel, program })
    }

    #[cfg(test)]
    pub fn of_functions(kernel: Functions, program: Option<(String, Functions)>) -> Self {
        Sites { kernel, program }
    }

    /// The name of the code that caused an event of the program named `program`.
    pub fn of(&self, program: &str, calls: &[u64]) -> String {
        let first = calls.first().copied().unwrap_or(0);
        if first == 0 {
            return String::new();
        }
        if first < KERNEL {
            return match &self.program {
                Some((name, functions)) if name == program => format!("{program}: {}", functions.at(first)),
                _ => format!("{program}: {first:#x}"),
            };
        }
        // The lookup subtracts 1, because a return address belongs to the next function if the call is the last
        // instruction of its function.
        let names = calls.iter().filter(|at| **at != 0).map(|at| self.kernel.at(at - 1));
        let mut reasons = names.clone().filter(|name| !PLUMBING.iter().any(|p| name.starts_with(p)));
        reasons.next().or(names.clone().next()).unwrap_or_default().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_the_first_caller_beyond_the_plumbing() {
        let named = |of: &[(u64, &str)]| Functions::of(of.iter().map(|(at, name)| (*at, (*name).to_owned())));
        let kernel = named(&[
            (KERNEL, "quire_sync::spin::SpinLock::contended"),
            (KERNEL + 0x100, "quire_vm::phys::queues::put"),
        ]);
        let sites = Sites::of_functions(kernel, Some(("prog".into(), named(&[(0x1000, "main")]))));
        // The call is the function's last instruction, so its return address is that of the next function.
        assert_eq!(sites.of("prog", &[KERNEL + 0x100, KERNEL + 0x150, 0]), "quire_vm::phys::queues::put");
        assert_eq!(sites.of("prog", &[KERNEL + 0x10, 0]), "quire_sync::spin::SpinLock::contended");
        assert_eq!(sites.of("prog", &[0x1004]), "prog: main");
        assert_eq!(sites.of("other", &[0x1004]), "other: 0x1004");
        assert_eq!(sites.of("other", &[0, 0]), "");
    }
}
