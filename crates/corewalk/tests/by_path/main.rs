//! Tests of back ends that find files by path alone. The paths that such a back end gets must stay
//! valid (F.6), and open files must stay usable (`Addressing::PathOnly`).

mod contract;
mod races;
mod storm;
mod tree;
mod unlinked;
