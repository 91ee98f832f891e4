//! Loops of a listing: sets of blocks that reach each other, laid out in the order in which they run.

use super::listing::{Flow, Listing};

/// A loop of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loop {
    /// Indices of its instructions in the order of one iteration. Both sides of a branch are included, one after the other.
    pub order: Vec<usize>,
    /// The loops that it holds, in layout order.
    pub inner: Vec<Loop>,
}

/// A basic block: instructions that run in sequence.
pub(super) struct Block {
    pub first: usize,
    pub end: usize,
    /// Where it continues, the next block in layout order first.
    pub next: Vec<usize>,
}

/// Outermost loops, in layout order.
pub(super) fn loops(listing: &Listing) -> Vec<Loop> {
    within(&blocks(listing))
}

/// The outermost loops of some blocks.
fn within(blocks: &[Block]) -> Vec<Loop> {
    let reach: Vec<Vec<bool>> = (0..blocks.len()).map(|b| reachable(blocks, b)).collect();
    let together = |a: usize, b: usize| reach[a][b] && reach[b][a];
    let mut found: Vec<Loop> = Vec::new();
    let mut taken = vec![false; blocks.len()];
    for b in 0..blocks.len() {
        if taken[b] || !together(b, b) {
            continue;
        }
        let inside: Vec<bool> = (0..blocks.len()).map(|other| together(b, other)).collect();
        for (taken, inside) in taken.iter_mut().zip(&inside) {
            *taken |= inside;
        }
        // The loop is entered at its header, and every round starts there.
        let entered = |to: usize| (0..blocks.len()).any(|from| !inside[from] && blocks[from].next.contains(&to));
        let header = (0..blocks.len()).find(|&m| inside[m] && entered(m)).unwrap_or(b);
        let order = in_order(blocks, header, &inside);
        let order = order.iter().flat_map(|&m| blocks[m].first..blocks[m].end).collect();
        // What runs in circles without coming back to the header is a loop within.
        let stays = |from: usize, to: usize| inside[from] && inside[to] && to != header;
        let round = blocks
            .iter()
            .enumerate()
            .map(|(at, block)| Block { next: block.next.iter().copied().filter(|&to| stays(at, to)).collect(), ..*block });
        found.push(Loop { order, inner: within(&round.collect::<Vec<_>>()) });
    }
    found
}

/// Splits the listing into basic blocks: after every branch and before every label.
pub(super) fn blocks(listing: &Listing) -> Vec<Block> {
    let n = listing.instructions.len();
    let mut starts: Vec<usize> = listing.labels.iter().map(|(_, at)| *at).chain([0]).filter(|&at| at < n).collect();
    starts.extend((1..n).filter(|&i| listing.instructions[i - 1].flow != Flow::Next));
    starts.sort_unstable();
    starts.dedup();
    let block_at = |instruction: usize| starts.binary_search(&instruction).ok();
    let to = |label: &str| listing.target(label).and_then(block_at);
    let ends = starts.iter().skip(1).copied().chain([n]);
    let cut = starts.iter().zip(ends).enumerate();
    cut.map(|(i, (&first, end))| {
        let following = (i + 1 < starts.len()).then_some(i + 1);
        let next = match listing.instructions.get(end.wrapping_sub(1)).map(|last| &last.flow) {
            Some(Flow::Next) => vec![following],
            Some(Flow::Jump(label)) => vec![to(label)],
            Some(Flow::Branch(label)) => vec![following, to(label)],
            Some(Flow::End) | None => vec![],
        };
        Block { first, end, next: next.into_iter().flatten().collect() }
    })
    .collect()
}

/// Which blocks can run after this one.
fn reachable(blocks: &[Block], from: usize) -> Vec<bool> {
    let mut seen = vec![false; blocks.len()];
    let mut open: Vec<usize> = blocks[from].next.clone();
    while let Some(b) = open.pop() {
        if !std::mem::replace(&mut seen[b], true) {
            open.extend(&blocks[b].next);
        }
    }
    seen
}

/// The blocks of a loop in reverse postorder: each block follows its predecessors, back edges excepted.
fn in_order(blocks: &[Block], header: usize, inside: &[bool]) -> Vec<usize> {
    let mut seen = vec![false; blocks.len()];
    let mut done = Vec::new();
    // A block and how many of its successors have been visited. The next block in layout comes last, so that it stands first.
    let mut path = vec![(header, 0)];
    seen[header] = true;
    while let Some((b, visited)) = path.pop() {
        match blocks[b].next.iter().rev().nth(visited) {
            None => done.push(b),
            Some(&to) => {
                path.push((b, visited + 1));
                if inside[to] && !std::mem::replace(&mut seen[to], true) {
                    path.push((to, 0));
                }
            }
        }
    }
    done.reverse();
    done
}

#[cfg(test)]
mod tests {
    use super::super::listing::{Class, Instruction, Tracked, Wait};
    use super::*;

    /// One instruction per word: `a` runs on, `>x` jumps, `?x` branches, `.` ends; `x:` is a label.
    fn listing(text: &str) -> Listing {
        let mut listing = Listing::default();
        for word in text.split_whitespace() {
            if let Some(label) = word.strip_suffix(':') {
                listing.labels.push((label.into(), listing.instructions.len()));
                continue;
            }
            let flow = match word.split_at(1) {
                (">", label) => Flow::Jump(label.into()),
                ("?", label) => Flow::Branch(label.into()),
                (".", _) => Flow::End,
                _ => Flow::Next,
            };
            let (tracked, wait) = (Tracked::No, Wait::No);
            listing.instructions.push(Instruction { text: word.into(), class: Class::Other, tracked, wait, flow });
        }
        listing
    }

    fn words(listing: &Listing, l: &Loop) -> String {
        l.order.iter().map(|&i| listing.instructions[i].text.as_str()).collect::<Vec<_>>().join(" ")
    }

    fn texts(text: &str) -> Vec<(String, Vec<String>)> {
        let listing = listing(text);
        let one = |l: &Loop| (words(&listing, l), l.inner.iter().map(|i| words(&listing, i)).collect());
        loops(&listing).iter().map(one).collect()
    }

    #[test]
    fn a_plain_loop() {
        assert_eq!(texts("a l: b c ?l d ."), [("b c ?l".to_string(), vec![])]);
        assert_eq!(texts("a ?l b l: ."), []);
    }

    #[test]
    fn a_rotated_loop_starts_where_it_is_entered() {
        // The loop is entered at `head`, which the compiler placed after the latch. The last part is out of line.
        let rotated = "a >head latch: math ?out head: barrier ?skip load skip: ?latch load2 >latch out: .";
        assert_eq!(texts(rotated), [("barrier ?skip load ?latch load2 >latch math ?out".to_string(), vec![])]);
    }

    #[test]
    fn both_ways_of_a_branch_and_an_inner_loop() {
        assert_eq!(texts("h: ?e a >j e: b j: c ?h ."), [("?e a >j b c ?h".to_string(), vec![])]);
        let inner = vec!["b ?i".to_string()];
        assert_eq!(texts("h: a i: b ?i c ?h d k: e ?k ."), [("a b ?i c ?h".to_string(), inner), ("e ?k".to_string(), vec![])]);
    }

    #[test]
    fn loops_in_loops_in_loops() {
        let listing = listing("t: a k: b w: wait ?w math ?k store ?t .");
        let tiles = loops(&listing).remove(0);
        assert_eq!(words(&listing, &tiles), "a b wait ?w math ?k store ?t");
        assert_eq!(words(&listing, &tiles.inner[0]), "b wait ?w math ?k");
        assert_eq!(words(&listing, &tiles.inner[0].inner[0]), "wait ?w");
    }

    #[test]
    fn labels_of_nothing_do_no_harm() {
        assert_eq!(texts(""), []);
        assert_eq!(texts("a ?gone . l:"), []);
    }
}
