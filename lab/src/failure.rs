//! The reasons why a bench has no figure.

use quire_vm::{FaultError, MapError, OutOfMemory};

/// The reason why a bench has no figure.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The measured core ran out of memory.
    #[error("the measured machine is out of memory")]
    OutOfMemory,
    /// A map operation was refused.
    #[error("a map operation was refused: {0:?}")]
    Map(MapError),
    /// An access was refused.
    #[error("an access was refused: {0:?}")]
    Fault(FaultError),
    /// A tool is missing or failed. The text says which tool and why.
    #[error("{0}")]
    Tool(String),
    /// The measured code gave a wrong result, so its figure would have no meaning.
    #[error("{0}")]
    Wrong(String),
    /// The bench needs the recording build of the program.
    #[error("this needs the recording build (--cfg recording)")]
    Build,
    /// The case needs the native build of the program.
    #[error("this needs the native build (without --cfg recording)")]
    Native,
    /// There is no such experiment or case. The text names the request.
    #[error("{0}")]
    NoCase(String),
}

impl From<OutOfMemory> for Failure {
    fn from(_: OutOfMemory) -> Self {
        Failure::OutOfMemory
    }
}

impl From<MapError> for Failure {
    fn from(e: MapError) -> Self {
        Failure::Map(e)
    }
}

impl From<FaultError> for Failure {
    fn from(e: FaultError) -> Self {
        Failure::Fault(e)
    }
}
