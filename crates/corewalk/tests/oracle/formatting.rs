//! Paths as they can be spelled, and what a spelling says of the tree.

use crate::judge::Seen;

/// A piece of a path.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    /// These names, each with its `/`.
    Names(Vec<u8>),
    /// One of several spellings, each with the values (one bit each) of a variable that it stands for.
    /// At most one of them can begin a path.
    One(usize, Vec<(u8, Vec<Part>)>),
}

/// Returns the part that is always spelled `names`.
pub(crate) fn names(names: &str) -> Part {
    Part::Names(names.as_bytes().to_vec())
}

/// Returns the part that is spelled like `spellings[value]`, whatever value the variable has.
pub(crate) fn one(variable: usize, spellings: impl IntoIterator<Item = Vec<Part>>) -> Part {
    let bit = |(value, parts): (usize, _)| (1_u8 << value, parts);
    Part::One(variable, spellings.into_iter().enumerate().map(bit).collect())
}

/// Returns what `path` says of the variables in `seen`, or None if no tree has such a path.
pub(crate) fn read(parts: &[Part], path: &[u8], mut seen: Seen) -> Option<Seen> {
    let rest = take(parts, path, &mut seen)?;
    rest.is_empty().then_some(seen)
}

/// Takes what `parts` spell from the beginning of a path and returns what is left.
fn take<'p>(parts: &[Part], path: &'p [u8], seen: &mut Seen) -> Option<&'p [u8]> {
    let mut rest = path;
    for part in parts {
        rest = match part {
            Part::Names(names) => {
                let rest = rest.strip_prefix(&names[..])?;
                // Not the beginning of a longer name.
                rest.first().is_none_or(|&next| next == b'/').then_some(rest)?
            }
            Part::One(variable, spellings) => {
                let (values, rest) = spellings.iter().find_map(|(values, parts)| {
                    let mut inside = *seen;
                    let rest = take(parts, rest, &mut inside)?;
                    *seen = inside;
                    Some((values, rest))
                })?;
                seen[*variable] &= values;
                rest
            }
        };
    }
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::{ANY, VARIABLES};

    #[test]
    fn path_says_which_values_its_names_stand_for() {
        let inner = one(1, [vec![names("/x")], vec![names("/xx")]]);
        let outer = one(0, [vec![inner, names("/m")], vec![names("/q/m")]]);
        let parts = [outer, names("/f")];
        let seen = |path: &str| {
            read(&parts, path.as_bytes(), [ANY; VARIABLES]).map(|seen| (seen[0], seen[1]))
        };
        assert_eq!(seen("/x/m/f"), Some((1, 1)));
        assert_eq!(seen("/xx/m/f"), Some((1, 2)));
        assert_eq!(seen("/q/m/f"), Some((2, ANY)));
        for wrong in ["", "/", "/x/m", "/x/m/f/", "/x/m/ff", "/y/m/f", "/x/q/m/f", "/q/m/fx"] {
            assert_eq!(seen(wrong), None, "{wrong}");
        }
    }
}
