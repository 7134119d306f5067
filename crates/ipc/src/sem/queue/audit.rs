//! Checks the consistency of the queues of a semaphore set that no call uses, for the crash models.

use super::{ALTER_LIST, COMPLEX_COUNT, CONST_LIST, List, Node, Set, bit_of, get, nodes_of, queue};

pub(crate) fn audit(set: Set<'_>) -> Result<(), String> {
    let waits = |node: &Node<'_>| node.outcome().is_none();
    let mut waiting: Vec<Node<'_>> = nodes_of(set).map(|(node, _)| node).filter(waits).collect();
    waiting.sort_by_key(|node| node.turn(get(&set.line()[super::TICKET])));
    let expect = |name: &str, queue: List<'_>, is_in: &dyn Fn(&Node<'_>) -> bool| {
        let wanted: Vec<u32> =
            waiting.iter().filter(|node| is_in(node)).map(|node| node.line).collect();
        let there: Vec<u32> = queue.iter().take(100).collect();
        let last = (get(queue.ends) >> 32) as u32;
        let is_good = wanted == there && wanted.last().copied().unwrap_or(0) == last;
        if is_good {
            Ok(())
        } else {
            Err(format!("queue {name} has {there:?} instead of {wanted:?}"))
        }
    };
    expect("alter", queue(set, None, ALTER_LIST), &|node| node.is_alter())?;
    let complex_zero = |node: &Node<'_>| !node.is_alter() && node.is_complex();
    expect("const", queue(set, None, CONST_LIST), &complex_zero)?;
    for num in 0..set.place.nsems as u16 {
        let is_of = |node: &Node<'_>| !node.is_complex() && node.sop(0).sem_num == num;
        let alter = queue(set, Some(num), ALTER_LIST);
        expect("alter of a semaphore", alter, &|node| is_of(node) && node.is_alter())?;
        let zero = queue(set, Some(num), CONST_LIST);
        expect("zero of a semaphore", zero, &|node| is_of(node) && !node.is_alter())?;
    }
    let complex = waiting.iter().filter(|node| node.is_complex()).count() as u64;
    if get(&set.line()[COMPLEX_COUNT]) != complex {
        return Err(format!("{complex} calls of several operations wait, but the count differs"));
    }
    for node in &waiting {
        let sops = node.sops(set.place.nsems);
        for sop in &sops {
            let word = set.word(sop.sem_num).map_err(|errno| errno.to_string())?;
            if word.waiters() & bit_of(&sops, *sop) == 0 {
                return Err(format!("semaphore {} lacks the bit for a waiting call", sop.sem_num));
            }
        }
    }
    Ok(())
}
