//! Refuses each allocation of each operation in turn. The operation fails and changes nothing.

use super::*;
use crate::msg::Wanted;
use crate::sem::{Array, Operation, Wait};
use messages::{message, queue, queues, receive};
use quire_heap::refusal;
use semaphores::{array, arrays, op, operate};

/// Runs `does` on a new fixture once for each allocation that `does` makes, and refuses this allocation. Also runs
/// `does` without a refusal.
fn refuse_each<T>(name: &str, prepare: impl Fn() -> T, does: impl Fn(&T) -> Result<(), Error>) {
    // The checker of lock orders allocates when it sees a new order. This first run shows it all orders.
    does(&prepare()).unwrap_or_else(|e| panic!("{name}: {e:?}"));
    for at in 1.. {
        let prepared = prepare();
        let (done, made) = refusal::at(at, || does(&prepared));
        if made < at {
            assert_eq!(done, Ok(()), "{name}");
            assert!(at > 1, "{name} allocates");
            return;
        }
        assert_eq!(done, Err(Error::OutOfMemory), "{name}, allocation {at}");
        assert_eq!(does(&prepared), Ok(()), "{name}, after allocation {at}");
    }
}

#[test]
fn a_call_without_memory_changes_nothing() {
    refuse_each("an array", arrays, |(all, _)| all.open(&ME, 3, 300, NEW).map(drop));
    refuse_each("a queue", queues, |(all, _)| all.open(&ME, 3, NEW).map(drop));
    let with_array = || {
        let (all, _) = arrays();
        let array = array(&all, 3);
        (all.undos().unwrap(), array, all)
    };
    refuse_each("undos", || arrays().0, |all| all.undos().map(drop));
    refuse_each("all values", with_array, |(_, array, _)| array.values(&ME).map(drop));
    refuse_each("an operation with an undo", with_array, |(undos, array, _)| {
        let undone = Operation { undo: true, ..op(0, 1) };
        operate(array, &[undone], Some(undos))?;
        assert_eq!(array.value(&ME, 0), Ok(1), "it was done twice");
        Ok(())
    });
    refuse_each("an operation that waits", with_array, |(_, array, _)| {
        let operations = quire_heap::Vec::try_copy(&[op(0, -1)])?;
        match Array::operate(array, &ME, operations, None, &Wait { deadline: Some(0), interrupted: QUIET }) {
            Err(Error::WouldBlock) => Ok(()),
            other => other,
        }
    });
    let with_queue = || {
        let (all, _) = queues();
        let queue = queue(&all);
        (queue, all)
    };
    refuse_each("a message", with_queue, |(queue, all)| {
        queue.send(&ME, message(all, 1, &[1; 5000])?, true, QUIET)?;
        assert_eq!(queue.status(None).unwrap().messages, 1, "it was sent twice");
        Ok(())
    });
    refuse_each("a message that waits", with_queue, |(queue, all)| {
        match queue.send(&ME, message(all, 1, &[1; 16385])?, false, &|| true) {
            Err(Error::Interrupted) => Ok(()),
            other => other,
        }
    });
    refuse_each("a receiver that waits", with_queue, |(queue, _)| {
        let how = crate::msg::Receive { wanted: Wanted::Any, most: 1, cuts: false, no_wait: false };
        match queue.receive(&ME, how, &|| true).err() {
            Some(Error::Interrupted) => Ok(()),
            other => Err(other.unwrap_or(Error::Invalid)),
        }
    });
    let with_message = || {
        let (queue, all) = with_queue();
        queue.send(&ME, message(&all, 1, b"x").unwrap(), true, QUIET).unwrap();
        (queue, all)
    };
    refuse_each("a copy", with_message, |(queue, _)| {
        let how = crate::msg::Receive { wanted: Wanted::Copy(0), most: 1, cuts: false, no_wait: true };
        queue.receive(&ME, how, QUIET).map(drop)
    });
    refuse_each("sums", with_message, |(_, all)| all.sums().map(drop));
}

#[test]
fn a_segment_without_memory_leaves_no_id() {
    for at in 1.. {
        let all = segments::segments();
        let how = || all.0.open(&ME, 3, 1, NEW, |name, attaches| segments::make(&all)(name, attaches));
        let (done, made) = refusal::at(at, || {
            // The standard library's allocations in `make` cannot be refused. So the calls with refusals pass a
            // function that only fails.
            all.0.open(&ME, 3, 1, NEW, |_, _| Err(Error::Denied))
        });
        if made < at {
            assert_eq!(done, Err(Error::Denied));
            assert!(at > 3);
            return;
        }
        assert_eq!(done, Err(Error::OutOfMemory), "allocation {at}");
        assert_eq!((all.0.registry().used(), all.1.charged(), all.0.sums().unwrap().pages), (0, 0, 0));
        assert!(how().is_ok());
    }
}

#[test]
fn receiving_and_removing_succeed_without_memory() {
    for round in 0..2 {
        let (all, host) = queues();
        let queue = queue(&all);
        let id = queue.status(None).unwrap().id;
        queue.send(&ME, message(&all, 1, b"x").unwrap(), true, QUIET).unwrap();
        let allocations = refusal::allocations(|| {
            let how = crate::msg::Receive { wanted: Wanted::Any, most: 1, cuts: false, no_wait: true };
            drop(queue.receive(&ME, how, QUIET).unwrap());
        });
        // A removal from the table of ids needs memory if lookups run at the time. Without memory, it waits for these
        // lookups instead.
        assert_eq!(refusal::at(1, || all.remove(&ME, id)).0, Ok(()));
        assert!(round == 0 || allocations == 0, "{allocations}");
        assert_eq!(receive(&queue, Wanted::Any, true), Err(Error::Removed));
        drop(queue);
        assert_eq!(host.charged(), 0);
    }
}
