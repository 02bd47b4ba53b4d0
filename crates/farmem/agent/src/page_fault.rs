//! Brings the page of a touch, by the pager.

use farmem_engine::PAGE_BYTES;
use farmem_engine::pager::{Served, Touch};

use crate::doorbell;
use crate::frames::Frames;
use crate::lock::LOCK;
use crate::program::Program;

/// Brings a page. `None` when the memory is not paged.
pub fn serve(program: &'static Program, touch: Touch) -> Option<Served> {
    let served = serve_it(program, touch);
    doorbell::ring(program);
    served
}

fn serve_it(program: &'static Program, touch: Touch) -> Option<Served> {
    let guard = LOCK.lock();
    let mut frames = Frames::new(program);
    match program.pager.touch(&mut frames, &mut program.units(&guard), touch) {
        Ok(served @ (Served::Yes | Served::Already)) => Some(served),
        // A page beside it tells nothing of this one, which may be no paged memory.
        Ok(Served::NotPaged) if frames.was_there == Some(touch.address & !(PAGE_BYTES - 1)) => {
            program.pager.adopt(&mut program.units(&guard), touch.address);
            Some(Served::Already)
        }
        Ok(Served::NotPaged) => None,
        Err(never) => match never {},
    }
}
