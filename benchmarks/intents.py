"""Which learner knows intents best that it was taught one at a time, with none shown twice?

CLINC150 and Banking77, on embeddings (`wordllama`) alone and with hashed n-grams of words beside them. All learners get the
same inputs, one class after another, and keep no example; settings are chosen on validation sentences: those of CLINC150,
and a fifth of the training sentences of Banking77. A logistic regression on all classes at once says what there is to
reach. Out of scope: how well the highest score (for logistic regression, probability) tells the sentences of CLINC150
that belong to no intent from those that do, as AUROC. What is there already is not measured again; --again begins anew.

    TORCHPFC_DATA=DATA python benchmarks/intents.py [--learners ours lda] [--again] [--out benchmarks/results/intents.json]
"""
