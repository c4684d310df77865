//! The table: one line a call, `number name => handler, "what is missing or different";`.

use super::{Handler, Supported};
use crate::errno::Errno;
use crate::{Ctx, Machine};
use crate::{exec, file, futex, memory, process, random, signal, system, time};

macro_rules! table {
    ($($number:literal $name:ident => $($handler:ident)::+ $(, $note:literal)?;)*) => {
        /// Calls handler `number` with `registers`; `None` where there is none.
        #[inline]
        pub fn dispatch<M: Machine>(
            ctx: &mut Ctx<'_, M>,
            number: u64,
            registers: &[u64; 6],
        ) -> Option<Result<usize, Errno>> {
            Some(match number {
                $($number => Handler::serve($($handler)::+::<M>, ctx, registers),)*
                _ => return None,
            })
        }

        /// What is supported, ascending by number.
        pub static SUPPORTED: &[Supported] =
            &[$(Supported { number: $number, name: stringify!($name), note: concat!("", $($note)?) },)*];
    };
}

table! {
@@
}
