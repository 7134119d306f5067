//! Property tests: the namespace and the reference model must give equal answers to the same random
//! operations.

use corewalk::RenameMode;
use corewalk_testkit::linearize::Spec;
use proptest::prelude::*;

use crate::fixtures::new;
use crate::model::{DIRS, Model, NAMES, Op, World};

fn place() -> impl Strategy<Value = (u32, usize)> {
    (0..DIRS.len() as u32, 0..NAMES.len())
}

fn operation() -> impl Strategy<Value = Op> {
    let mode = prop_oneof![
        3 => Just(RenameMode::Replace),
        1 => Just(RenameMode::NoReplace),
        2 => Just(RenameMode::Exchange),
    ];
    prop_oneof![
        place().prop_map(|(dir, name)| Op::Lookup { dir, name }),
        (0..NAMES.len(), 0..NAMES.len()).prop_map(|(a, b)| Op::Walk { names: [a, b] }),
        place().prop_map(|(dir, name)| Op::Create { dir, name, tag: 0 }),
        place().prop_map(|(dir, name)| Op::Unlink { dir, name }),
        place().prop_map(|(dir, name)| Op::Rmdir { dir, name }),
        (place(), place(), mode).prop_map(|(from, to, mode)| Op::Rename { from, to, mode }),
        (0..DIRS.len() as u32).prop_map(|dir| Op::Path { dir }),
    ]
}

/// An event before an operation. It must not change the answer of the operation.
#[derive(Clone, Copy, Debug)]
enum Noise {
    None,
    Prune,
    InvalidateRoot,
    InvalidateAll,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn namespace_answers_as_the_model(
        steps in prop::collection::vec(
            (operation(), prop_oneof![
                8 => Just(Noise::None), 1 => Just(Noise::Prune), 1 => Just(Noise::InvalidateRoot),
                1 => Just(Noise::InvalidateAll),
            ]),
            1..80,
        )
    ) {
        let vfs = new();
        let world = World::new(&vfs);
        let mut model = Model::new();
        for (step, (op, noise)) in steps.iter().enumerate() {
            match noise {
                Noise::None => {}
                Noise::Prune => { vfs.prune(); }
                Noise::InvalidateRoot => vfs.invalidate_dir(&vfs.root()).unwrap(),
                Noise::InvalidateAll => vfs.invalidate_all(&mut |_, _| ()),
            }
            let op = match *op {
                Op::Create { dir, name, .. } => Op::Create { dir, name, tag: 3 + step as u32 },
                ref op => op.clone(),
            };
            let right = model.apply(&op);
            prop_assert_eq!(world.apply(&op), right, "{:?}", op);
        }
    }
}
