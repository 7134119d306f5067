//! Back ends that find files by path alone. The paths that they are given stay valid (F.6), and
//! open files stay usable (`Addressing::PathOnly`).

mod contract;
mod races;
mod storm;
mod tree;
mod unlinked;
