//! Converts argument registers to typed parameters, so that a handler is an ordinary function.

use quire_linux_state::errno::Errno;
use quire_linux_state::{Ctx, Machine};

/// A parameter of a system call, taken from the low bits of its register as Linux's own wrappers do.
pub trait Arg {
    /// The register's value as this type.
    fn from_register(value: u64) -> Self;
}

macro_rules! args {
    ($($t:ty)*) => {
        $(impl Arg for $t {
            #[inline(always)]
            fn from_register(value: u64) -> Self {
                value as $t
            }
        })*
    };
}
args!(u64 i64 u32 i32 usize);

/// A function that serves a system call:
/// `fn sys_x<M: Machine>(ctx: &mut Ctx<'_, M>, a: A, b: B) -> Result<usize, Errno>`, with up to six [`Arg`]s.
pub trait Handler<M: Machine, Args> {
    /// Calls the function with the arguments in the caller's registers.
    fn serve(self, ctx: &mut Ctx<'_, M>) -> Result<usize, Errno>;
}

macro_rules! handlers {
    ($(($($a:ident $i:literal),*))*) => {
        $(impl<M: Machine, F, $($a: Arg),*> Handler<M, ($($a,)*)> for F
        where
            F: FnOnce(&mut Ctx<'_, M>, $($a),*) -> Result<usize, Errno>,
        {
            #[inline(always)]
            #[allow(unused_variables)]
            fn serve(self, ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
                // The registers are read here and not before the dispatch, so a call loads only the arguments that it
                // has.
                let registers = ctx.regs.arguments();
                self(ctx, $($a::from_register(registers[$i])),*)
            }
        })*
    };
}
handlers! {
    ()
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F5 5)
}
