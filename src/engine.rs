//! The backward walk: order, accumulation, un-broadcasting, hooks, `retain_graph`, `create_graph`.
//!
//! A call walks the graph twice. First it numbers what is reachable and counts the edges into each vertex; then it runs vertices whose
//! edges have all delivered, the latest recorded first, leaves as soon as they can. All state belongs to the call (a `Task` on the
//! thread's stack while it runs, rule 6): several threads may walk one graph, calls nest inside hooks, and an error leaves nothing behind.
//! The roots keep every node alive for the length of the call, so vertices borrow them.
use crate::array::Array;
use crate::dtype::Scalar;
use crate::error::{Error, Result, bail, err};
use crate::kernels::{Out, pointwise, table};
use crate::layout::is_dense;
use crate::ops;
use crate::tape::mode::{self, GradGuard};
use crate::tape::node::Meta;
pub use crate::tape::task::{Ends, Task, at_end, current_task, queue_callback, with_task};
use crate::tape::task::{NEXT_TASK, Running};
use crate::tape::{Cx, Edge, Held, Node, Tensor, host};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

/// What a backward call is asked to do.
pub struct Request {
    /// Where to start, with the gradient given there (None: ones, for a single element).
    pub roots: Vec<(Tensor, Option<Tensor>)>,
    /// Starts that are edges of the graph rather than tensors.
    pub edges: Vec<(Edge, Tensor)>,
    pub retain_graph: bool,
    pub create_graph: bool,
    /// Only what leads to these; None: every leaf.
    pub inputs: Option<Vec<Edge>>,
    /// With `accumulate`: inputs that are no leaves, whose `.grad` is to be set, by number.
    pub keepers: Vec<(u32, Tensor)>,
    /// Into `.grad` of the inputs (backward) rather than as a result (grad).
    pub accumulate: bool,
    pub allow_unused: bool,
}

#[derive(Clone, Copy)]
enum At<'a> {
    Node(&'a Arc<Node>),
    Leaf(&'a Held),
}
impl At<'_> {
    fn address(&self) -> usize {
        match self {
            At::Node(n) => Arc::as_ptr(n) as usize,
            At::Leaf(h) => h.tensor().id(),
        }
    }
}
struct Vertex<'a> {
    at: At<'a>,
    /// Edges that have not delivered yet.
    waits: u32,
    /// Whether it runs (it leads to an input), and whether its gradient is asked for.
    needed: bool,
    wanted: SmallVec<[(u32, u32); 1]>,
    grads: SmallVec<[Option<Tensor>; 1]>,
    /// Where the numbers of the vertices that its edges lead to begin in `Numbered::targets`.
    first: u32,
}
impl Vertex<'_> {
    /// Does anybody want a gradient to come here?
    fn asked(&self) -> bool {
        self.needed || !self.wanted.is_empty()
    }
}
/// What is reachable from the roots.
struct Numbered<'a> {
    graph: Vec<Vertex<'a>>,
    /// For the edges of each vertex in turn, the vertex that they lead to, or `NOWHERE`.
    targets: Vec<u32>,
    /// The vertices, with those they lead to first.
    order: Vec<u32>,
    /// Numbers by address.
    index: FxHashMap<usize, u32>,
}
const NOWHERE: u32 = u32::MAX;
fn vertex_of(e: &Edge) -> Option<At<'_>> {
    match e {
        Edge::None => None,
        Edge::Node(n, _) => Some(At::Node(n)),
        Edge::Leaf(h) => Some(At::Leaf(h)),
    }
}

/// Runs a backward call. The result has one gradient per input (for `accumulate` it is empty).
pub fn run(r: Request) -> Result<Vec<Option<Tensor>>> {
    let _mode = GradGuard::set(r.create_graph);
    let keep = r.retain_graph;
    let mut starts: Vec<(Edge, Tensor)> = Vec::with_capacity(r.roots.len() + r.edges.len());
    for (i, (t, g)) in r.roots.into_iter().enumerate() {
        starts.push((root_edge(&t, i)?, root_grad(&t, g)?));
    }
    starts.extend(r.edges);
    if let Some(inputs) = &r.inputs
        && let Some(i) = inputs.iter().position(Edge::is_none)
    {
        bail!(Runtime, "One of the differentiated Tensors does not require grad (input {i})");
    }
    let (edges, mut first): (Vec<Edge>, Vec<Option<Tensor>>) = starts.into_iter().map(|(e, g)| (e, Some(g))).unzip();
    let edges = Rc::new(edges);

    let Numbered { mut graph, targets, order, index } = number(&edges);
    let index = Rc::new(index);
    let needed = r.inputs.as_ref().map(|inputs| mark(&mut graph, &targets, &order, &index, inputs, r.accumulate));
    let id = NEXT_TASK.fetch_add(1, Relaxed);
    let _running = Running::start(Task {
        id,
        keep,
        node: None,
        needed: needed.map(Rc::new),
        roots: edges.clone(),
        graph: index.clone(),
        callbacks: Vec::new(),
        state: FxHashMap::default(),
        ends: Vec::new(),
    });
    let mut results: Vec<Option<Tensor>> = if r.accumulate { Vec::new() } else { vec![None; r.inputs.as_ref().map_or(0, Vec::len)] };

    // The roots deliver first.
    let mut ready = BinaryHeap::new();
    for (e, g) in edges.iter().zip(&mut first) {
        let Some(at) = vertex_of(e) else { continue };
        let v = index[&at.address()];
        let nr = if let Edge::Node(_, nr) = e { *nr } else { 0 };
        deliver(&mut graph[v as usize], nr, g.take().expect("each root delivers once"))?;
        let vertex = &mut graph[v as usize];
        vertex.waits -= 1;
        if vertex.waits == 0 {
            ready.push((priority(&vertex.at), v));
        }
    }
    let mut walk =
        Walk { graph, targets, ready, keep, create: r.create_graph, accumulate: r.accumulate, keepers: &r.keepers, results: &mut results };
    walk.run()?;
    if !keep && r.inputs.is_some() {
        free_rest(&walk.graph, &order, &index);
    }
    drop(walk);
    while let Some(f) = with_task(|t| if t.callbacks.is_empty() { None } else { Some(t.callbacks.remove(0)) }).flatten() {
        f()?;
    }
    if !r.accumulate && !r.allow_unused && r.inputs.is_some() && results.iter().any(Option::is_none) {
        bail!(
            Runtime,
            "One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True if this is the desired behavior."
        );
    }
    Ok(results)
}
fn root_edge(t: &Tensor, i: usize) -> Result<Edge> {
    match t.edge() {
        Edge::None => bail!(Runtime, "element {i} of tensors does not require grad and does not have a grad_fn"),
        e => Ok(e),
    }
}
fn root_grad(t: &Tensor, g: Option<Tensor>) -> Result<Tensor> {
    let (shape, dtype) = t.look(|a| (a.shape, a.dtype));
    match g {
        Some(g) => {
            let given = g.shape();
            if given != shape {
                bail!(Runtime, "Mismatch in shape: the gradient given has a shape of {given:?} and the output has a shape of {shape:?}");
            }
            if g.dtype() == dtype { Ok(g) } else { ops::to_dtype(&g, dtype) }
        }
        None if shape.numel() == 1 && mode::dispatching() => mode::no_grad(|| ops::ones_like(t, None, None, None, None, None, false)),
        None if shape.numel() == 1 => Ok(Tensor::new(Array::full(shape, dtype, Scalar::Float(1.0))?)),
        None => bail!(
            Runtime,
            "grad can be implicitly created only for scalar outputs; this one has shape {shape:?}: give backward() a gradient of that shape"
        ),
    }
}
fn priority(at: &At<'_>) -> u64 {
    match at {
        At::Node(n) => n.seq(),
        At::Leaf(_) => u64::MAX,
    }
}

/// Numbers everything reachable and counts the edges into each vertex.
fn number(roots: &[Edge]) -> Numbered<'_> {
    let mut all = Numbered { graph: Vec::new(), targets: Vec::new(), order: Vec::new(), index: FxHashMap::default() };
    let mut stack: Vec<(u32, u32)> = Vec::new();
    for root in roots {
        if let Some(at) = vertex_of(root) {
            all.reach(at, &mut stack);
        }
        while let Some((v, next)) = stack.last_mut() {
            let (v, k) = (*v, *next);
            let Vertex { at, first, .. } = all.graph[v as usize];
            let edge = match at {
                At::Node(n) => n.inputs.get(k as usize).map(|i| &i.edge),
                At::Leaf(_) => None,
            };
            *next += 1;
            match edge {
                None => {
                    stack.pop();
                    all.order.push(v);
                }
                Some(e) => {
                    if let Some(at) = vertex_of(e) {
                        let to = all.reach(at, &mut stack);
                        all.targets[(first + k) as usize] = to;
                    }
                }
            }
        }
    }
    all
}
impl<'a> Numbered<'a> {
    /// Counts one edge into the vertex; pushes it on the stack if it is new.
    fn reach(&mut self, at: At<'a>, stack: &mut Vec<(u32, u32)>) -> u32 {
        let new = self.graph.len() as u32;
        let v = *self.index.entry(at.address()).or_insert(new);
        if v == new {
            let first = self.targets.len();
            if let At::Node(n) = at {
                self.targets.resize(first + n.inputs.len(), NOWHERE);
            }
            self.graph.push(Vertex { at, waits: 0, needed: true, wanted: SmallVec::new(), grads: SmallVec::new(), first: first as u32 });
            stack.push((v, 0));
        }
        self.graph[v as usize].waits += 1;
        v
    }
}
/// What the innermost call on this thread runs, in its order; None outside of one.
pub fn execution_order() -> Option<Vec<Arc<Node>>> {
    let (roots, needed) = with_task(|t| (t.roots.clone(), t.needed.clone()))?;
    let Numbered { mut graph, index, .. } = number(&roots);
    let places: Vec<At<'_>> = graph.iter().map(|v| v.at).collect();
    let (mut ready, mut out) = (BinaryHeap::new(), Vec::new());
    let mut arrive = |e: &Edge, ready: &mut BinaryHeap<(u64, u32)>| {
        let Some(at) = vertex_of(e) else { return };
        let v = index[&at.address()];
        graph[v as usize].waits -= 1;
        if graph[v as usize].waits == 0 {
            ready.push((priority(&at), v));
        }
    };
    roots.iter().for_each(|e| arrive(e, &mut ready));
    while let Some((_, v)) = ready.pop() {
        let at = places[v as usize];
        if needed.as_ref().is_some_and(|n| !n.contains(&at.address())) {
            continue;
        }
        match at {
            At::Leaf(h) => out.push(accumulate_node(h)),
            At::Node(n) => {
                out.push(n.clone());
                n.inputs.iter().for_each(|i| arrive(&i.edge, &mut ready));
            }
        }
    }
    Some(out)
}
/// Marks what leads to the inputs, and what is asked of whom. Returns the addresses of what will run.
fn mark(
    graph: &mut [Vertex<'_>],
    targets: &[u32],
    order: &[u32],
    index: &FxHashMap<usize, u32>,
    inputs: &[Edge],
    accumulate: bool,
) -> FxHashSet<usize> {
    graph.iter_mut().for_each(|v| v.needed = false);
    for (i, e) in inputs.iter().enumerate() {
        let Some(&v) = vertex_of(e).and_then(|at| index.get(&at.address())) else { continue };
        let vertex = &mut graph[v as usize];
        match e {
            // backward(inputs=): a leaf accumulates, another tensor keeps its gradient as `retain_grad` does
            Edge::Leaf(_) if accumulate => vertex.needed = true,
            Edge::Node(_, nr) => vertex.wanted.push((*nr, i as u32)),
            _ => vertex.wanted.push((0, i as u32)),
        }
    }
    for &v in order {
        let vertex = &graph[v as usize];
        let leads = match vertex.at {
            At::Leaf(_) => vertex.asked(),
            At::Node(n) => {
                let to = &targets[vertex.first as usize..][..n.inputs.len()];
                to.iter().any(|&w| w != NOWHERE && graph[w as usize].asked())
            }
        };
        graph[v as usize].needed = leads;
    }
    graph.iter().filter(|v| v.asked()).map(|v| v.at.address()).collect()
}
/// A call that frees its graph frees the side paths that it did not run, where nobody else can run them either: each owner of such a
/// node is an edge of a node whose values are gone. Where somebody can, what policies hold besides a living tensor goes.
fn free_rest(graph: &[Vertex<'_>], order: &[u32], index: &FxHashMap<usize, u32>) {
    let mut from_gone = vec![0usize; graph.len()];
    for &v in order.iter().rev() {
        let At::Node(n) = graph[v as usize].at else { continue };
        let orphan = Arc::strong_count(n) == from_gone[v as usize];
        if orphan {
            n.release();
        } else if !n.is_freed() {
            let gone = n.slots().keep_living_outputs();
            drop(gone);
        }
        if orphan || n.is_freed() {
            for at in n.inputs.iter().filter_map(|i| vertex_of(&i.edge)) {
                from_gone[index[&at.address()] as usize] += 1;
            }
        }
    }
}
fn deliver(v: &mut Vertex<'_>, nr: u32, g: Tensor) -> Result<()> {
    let nr = nr as usize;
    if v.grads.len() <= nr {
        v.grads.resize(nr + 1, None);
    }
    v.grads[nr] = Some(match v.grads[nr].take() {
        None => g,
        Some(old) => sum(old, &g)?,
    });
    Ok(())
}
/// Is this the only holder of the tensor and its bytes, so that they may be written?
fn owned_alone(t: &Tensor) -> bool {
    t.owners() == 1
        && !t.is_view()
        && t.look(|a| !a.number && Arc::strong_count(a.storage()) == 1 && !a.storage().is_foreign() && is_dense(&a.shape, &a.strides))
}
/// The sum of two gradients, into the first one's memory where nobody else sees it.
fn sum(old: Tensor, g: &Tensor) -> Result<Tensor> {
    if !mode::grad_enabled() && !mode::dispatching() && owned_alone(&old) {
        let (to, add) = (old.array(), g.array());
        if to.shape == add.shape && to.dtype == add.dtype {
            let r = pointwise::run(Out(Some(&to)), "add", &table::Add {}, [&to, &add])?;
            if r.same_elements(&to) {
                return Ok(old);
            }
            return Ok(Tensor::new(r));
        }
    }
    ops::add(&old, g, Scalar::Int(1))
}

struct Walk<'a, 'r> {
    graph: Vec<Vertex<'a>>,
    targets: Vec<u32>,
    ready: BinaryHeap<(u64, u32)>,
    keep: bool,
    create: bool,
    accumulate: bool,
    keepers: &'r [(u32, Tensor)],
    results: &'r mut Vec<Option<Tensor>>,
}
/// How many vertices run between two looks for Ctrl-C.
const BETWEEN_INTERRUPTS: u32 = 256;

impl Walk<'_, '_> {
    fn run(&mut self) -> Result<()> {
        let mut steps = 0u32;
        while let Some((_, v)) = self.ready.pop() {
            steps += 1;
            if steps.is_multiple_of(BETWEEN_INTERRUPTS)
                && let Some(h) = host()
            {
                h.interrupted()?;
            }
            let vertex = &mut self.graph[v as usize];
            let (at, needed, first) = (vertex.at, vertex.needed, vertex.first);
            let grads = std::mem::take(&mut vertex.grads);
            let wanted = std::mem::take(&mut vertex.wanted);
            if !needed && wanted.is_empty() {
                continue;
            }
            match at {
                At::Leaf(h) => self.leaf(h.tensor(), grads.into_iter().next().flatten(), &wanted)?,
                At::Node(n) => self.node(n, first as usize, grads, needed, &wanted)?,
            }
        }
        Ok(())
    }
    fn leaf(&mut self, t: &Tensor, g: Option<Tensor>, wanted: &[(u32, u32)]) -> Result<()> {
        let Some(mut g) = g else { return Ok(()) };
        if wanted.is_empty() && self.accumulate && !t.has_extra() {
            return accumulate(t, g, self.create);
        }
        let hooks = t.look_extra(|e| (e.leaf_hooks.clone(), e.pre_hooks.clone(), e.node_hooks.clone(), e.after_hooks.clone()));
        let (on_grad, pre, post, after) = hooks.unwrap_or_default();
        for (_, h) in on_grad {
            if let Some(new) = h.call(&g)? {
                g = replaced(&g, new, "a hook on a leaf")?;
            }
        }
        for (_, i) in wanted {
            if !self.accumulate {
                self.results[*i as usize] = Some(g.clone());
            }
        }
        if !self.accumulate {
            return Ok(());
        }
        let mut outs = vec![Some(g)];
        for (_, h) in pre {
            if let Some(new) = h.call(&outs)? {
                outs = new;
            }
        }
        let Some(g) = outs.swap_remove(0) else { return Ok(()) };
        let seen = (!post.is_empty()).then(|| g.clone());
        accumulate(t, g, self.create)?;
        if let Some(g) = seen {
            for (_, h) in post {
                h.call(&[], &[Some(g.clone())])?;
            }
        }
        for (_, h) in after {
            h.call(t)?;
        }
        Ok(())
    }
    fn node(
        &mut self,
        n: &Arc<Node>,
        first: usize,
        mut grads: SmallVec<[Option<Tensor>; 1]>,
        needed: bool,
        wanted: &[(u32, u32)],
    ) -> Result<()> {
        if grads.len() < n.outputs() {
            grads.resize(n.outputs(), None);
        }
        if n.is_hooked() {
            self.before(n, &mut grads)?;
        }
        for (nr, i) in wanted {
            if let Some(g) = &grads[*nr as usize] {
                if self.accumulate {
                    for (_, t) in self.keepers.iter().filter(|(at, _)| at == i) {
                        retain_grad(t, g, self.create)?;
                    }
                } else {
                    self.results[*i as usize] = Some(g.clone());
                }
            }
        }
        if !needed {
            return Ok(());
        }
        let mut outs: SmallVec<[Option<Tensor>; 3]> = SmallVec::new();
        outs.resize(n.inputs.len(), None);
        let mut needs = 0u64;
        for (i, &to) in self.targets[first..][..n.inputs.len()].iter().enumerate().take(64) {
            let wants = to != NOWHERE && self.graph[to as usize].asked();
            needs |= (wants as u64) << i;
        }
        if n.op.takes_undefined() || grads.iter().any(Option::is_some) {
            if n.is_freed() {
                return Err(n.freed_error());
            }
            self.call(n, &grads, needs, &mut outs)?;
        }
        if !self.keep {
            n.release();
        }
        drop(grads);
        for (i, (input, g)) in n.inputs.iter().zip(outs.iter_mut()).enumerate() {
            let v = self.targets[first + i];
            if v == NOWHERE {
                continue;
            }
            if let Some(g) = g.take() {
                let g = fit(n, i, g)?;
                let nr = if let Edge::Node(_, nr) = &input.edge { *nr } else { 0 };
                deliver(&mut self.graph[v as usize], nr, g)?;
            }
            let vertex = &mut self.graph[v as usize];
            vertex.waits -= 1;
            if vertex.waits == 0 {
                self.ready.push((priority(&vertex.at), v));
            }
        }
        Ok(())
    }
    fn call(&mut self, n: &Arc<Node>, grads: &[Option<Tensor>], needs: u64, outs: &mut SmallVec<[Option<Tensor>; 3]>) -> Result<()> {
        let before = with_task(|t| t.node.replace(n.clone())).flatten();
        let result = n.op.backward(grads, &Cx { node: n, needs, keep: self.keep }, outs);
        let mine = with_task(|t| std::mem::replace(&mut t.node, before)).flatten();
        drop(mine);
        result.map_err(|e| explain(n, e))?;
        if mode::anomaly() {
            check_nan(n, outs)?;
        }
        if n.is_hooked() {
            let post = n.with_hooks(|h| h.post.iter().map(|(_, h)| h.clone()).collect::<Vec<_>>());
            let shown: SmallVec<[usize; 4]> = (0..outs.len()).filter(|&i| n.shows(i)).collect();
            for h in post {
                let given: SmallVec<[Option<Tensor>; 4]> = shown.iter().map(|&i| outs[i].clone()).collect();
                if let Some(new) = h.call(&given, grads)? {
                    if new.len() != shown.len() {
                        bail!(Runtime, "a hook on {} returned {} gradients, but it has {} inputs", n.name(), new.len(), shown.len());
                    }
                    shown.iter().zip(new).for_each(|(&i, g)| outs[i] = g);
                }
            }
        }
        Ok(())
    }
    /// Hooks on the gradients of a node's outputs: those of tensors, then those that keep it, then those of the node.
    fn before(&mut self, n: &Arc<Node>, grads: &mut SmallVec<[Option<Tensor>; 1]>) -> Result<()> {
        let (on_grad, retain, pre) = n.with_hooks(|h| (h.tensor.clone(), h.retain.clone(), h.pre.clone()));
        for (_, nr, h) in on_grad {
            if let Some(g) = grads[nr as usize].clone()
                && let Some(new) = h.call(&g)?
            {
                grads[nr as usize] = Some(replaced(&g, new, "a hook on a tensor")?);
            }
        }
        for (nr, t) in retain {
            if let (Some(t), Some(g)) = (t.upgrade(), grads[nr as usize].clone()) {
                retain_grad(&t, &g, self.create)?;
            }
        }
        for (_, h) in pre {
            if let Some(new) = h.call(grads)? {
                if new.len() != grads.len() {
                    bail!(Runtime, "a prehook on {} returned {} gradients, but it has {} outputs", n.name(), new.len(), grads.len());
                }
                *grads = new.into();
            }
        }
        Ok(())
    }
}
/// `.grad` of a tensor that is no leaf: set anew or added to, as `retain_grad` promises.
fn retain_grad(t: &Tensor, g: &Tensor, create: bool) -> Result<()> {
    let new = match t.grad() {
        Some(old) => ops::add(old.tensor(), g, Scalar::Int(1))?,
        None if create => ops::clone(g, None)?,
        None => g.clone(),
    };
    drop(t.set_grad(Some(Held::of(&new))));
    Ok(())
}
fn replaced(old: &Tensor, new: Tensor, who: &str) -> Result<Tensor> {
    if new.shape() != old.shape() {
        bail!(Runtime, "{who} has changed the size of value: a gradient of shape {:?} became {:?}", old.shape(), new.shape());
    }
    if new.dtype() != old.dtype() {
        bail!(Runtime, "{who} has changed the type of value (was {} got {})", old.dtype().name(), new.dtype().name());
    }
    Ok(new)
}
/// A gradient as the input looks: summed over what was repeated, in the input's dtype.
fn fit(n: &Arc<Node>, i: usize, g: Tensor) -> Result<Tensor> {
    let want: &Meta = n.meta(i);
    let (shape, dtype) = g.look(|a| (a.shape, a.dtype));
    if shape == want.shape && dtype == want.dtype {
        return Ok(g);
    }
    let g = if shape == want.shape {
        g
    } else {
        let lead = shape.len().checked_sub(want.shape.len());
        let fits = lead.is_some_and(|l| want.shape.iter().enumerate().all(|(d, &w)| w == shape[l + d] || w == 1));
        if !fits {
            bail!(
                Runtime,
                "Function {} returned an invalid gradient at index {i} - got {:?} but expected shape compatible with {:?}",
                n.name(),
                shape,
                want.shape
            );
        }
        ops::sum_to(&g, &want.shape)?
    };
    if dtype == want.dtype { Ok(g) } else { ops::to_dtype(&g, want.dtype) }
}
/// Adds a gradient to a leaf's `.grad`: taken over where nobody else holds it, in place where that is right, else as a new tensor.
pub fn accumulate(t: &Tensor, g: Tensor, create: bool) -> Result<()> {
    let mut g = g;
    loop {
        // Taken out, added, put back: no kernel runs under the lock, and another thread's part is never lost.
        match t.set_grad(None) {
            None => {
                let new = if owned_alone(&g) {
                    if mode::dispatching() { ops::detach(&g)? } else { g }
                } else if create || mode::dispatching() {
                    ops::clone(&g, None)?
                } else {
                    let a = g.array();
                    Tensor::new(pointwise::cast(&a, a.dtype)?)
                };
                match t.set_grad(Some(Held::of(&new))) {
                    None => return Ok(()),
                    Some(other) => {
                        drop(t.set_grad(Some(other)));
                        g = new;
                    }
                }
            }
            Some(old) => {
                let have = old.tensor();
                let in_place = !create && !have.requires_grad() && have.shape() == g.shape() && have.dtype() == g.dtype();
                let new = if in_place {
                    match ops::add_(have, &g, Scalar::Int(1)) {
                        Ok(_) => old,
                        Err(e) => {
                            drop(t.set_grad(Some(old)));
                            return Err(e);
                        }
                    }
                } else {
                    match ops::add(have, &g, Scalar::Int(1)) {
                        Ok(sum) => Held::of(&sum),
                        Err(e) => {
                            drop(t.set_grad(Some(old)));
                            return Err(e);
                        }
                    }
                };
                match t.set_grad(Some(new)) {
                    None => return Ok(()),
                    Some(other) => g = other.tensor().clone(),
                }
            }
        }
    }
}
#[cold]
fn explain(n: &Arc<Node>, e: Box<Error>) -> Box<Error> {
    if mode::anomaly()
        && let (Some(stack), Some(h)) = (n.stack(), host())
        && let Err(e) = h.warn(&format!("Error detected in {}. Traceback of forward call that caused the error:\n{stack}", n.name()))
    {
        return e;
    }
    e
}
#[cold]
fn check_nan(n: &Arc<Node>, outs: &[Option<Tensor>]) -> Result<()> {
    if !mode::anomaly_checks_nan() {
        return Ok(());
    }
    for (i, g) in outs.iter().enumerate() {
        if let Some(g) = g
            && g.array().to_vec().iter().any(|v| v.is_nan())
        {
            return Err(explain(n, err!(Runtime, "Function '{}' returned nan values in its {i}th output.", n.name())));
        }
    }
    Ok(())
}
/// Will the innermost running call run this node?
pub fn will_run(n: &Arc<Node>) -> Option<bool> {
    will_run_at(Arc::as_ptr(n) as usize)
}
/// As `will_run`, for a node or a leaf known by its address.
pub fn will_run_at(at: usize) -> Option<bool> {
    with_task(|t| match &t.needed {
        Some(s) => s.contains(&at),
        None => t.graph.contains_key(&at),
    })
}

/// The node that stands for accumulation into a leaf: made when somebody asks, one per leaf for as long as it is held.
pub struct AccumulateGrad {
    pub variable: Held,
}
static ACCUMULATE: crate::tape::Info = crate::tape::Info {
    node: "torch::autograd::AccumulateGrad",
    op: "accumulate_grad",
    schema: "accumulate_grad",
    inputs: &[],
    outputs: &["grad"],
    visible: 1,
    nondiff: 0,
    saves: &[],
    saves_outputs: false,
    order: &[],
    uses: crate::tape::Uses::NONE,
    every: false,
    view: false,
    state: 0,
    views: &ops::views::VIEWS,
};
impl crate::tape::Backward for AccumulateGrad {
    fn info(&self) -> &'static crate::tape::Info {
        &ACCUMULATE
    }
    /// Called by hand only (the walk deals with leaves itself): adds the gradient.
    fn backward(&self, g: &[Option<Tensor>], _: &Cx<'_>, _: &mut [Option<Tensor>]) -> Result<()> {
        match &g[0] {
            Some(g) => accumulate(self.variable.tensor(), g.clone(), mode::grad_enabled()),
            None => Ok(()),
        }
    }
    fn leaf(&self) -> Option<&Held> {
        Some(&self.variable)
    }
}
pub fn accumulate_node(leaf: &Held) -> Arc<Node> {
    let t = leaf.tensor();
    if let Some(n) = t.look_extra(|e| e.accumulate.as_ref().and_then(Weak::upgrade)).flatten() {
        return n;
    }
    let meta = t.look(Meta::of);
    let op = Box::new(AccumulateGrad { variable: leaf.clone() });
    let n = Node::new(u64::MAX, op, SmallVec::new(), &[meta], Default::default(), None);
    t.with_extra(|e| e.accumulate = Some(Arc::downgrade(&n)));
    n
}
/// The edge that a node and an output number stand for: into the leaf itself where the node is its accumulation.
pub fn edge_into(n: &Arc<Node>, nr: u32) -> Edge {
    match n.op.leaf() {
        Some(leaf) => Edge::Leaf(leaf.clone()),
        None => Edge::Node(n.clone(), nr),
    }
}
