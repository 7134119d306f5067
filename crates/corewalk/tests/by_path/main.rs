//! Tests of back ends that find files by path alone. A path must stay valid during the call that
//! gets it (rule F.6 of `FileSystem`), and an unlinked open file must stay usable
//! (`Addressing::PathOnly`).

mod contract;
mod layer;
mod memory;
mod races;
mod storm;
mod tree;
mod unlinked;
